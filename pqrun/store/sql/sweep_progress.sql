-- Look through a piece of the reports, and delete those whose jobs are gone. $1 after job_id bigint  $2 limit integer
-- Jobs that plain SQL, or a worker of an older version, deletes leave theirs behind. One snapshot, so a job that is being moved from one
-- part to the other is seen in one of them; an id is never used again. Read and deleted in the order of ids.
WITH looked AS MATERIALIZED (
    SELECT p.job_id FROM /*$schema*/pqrun.progress p WHERE p.job_id > $1::bigint ORDER BY p.job_id LIMIT $2::integer
), orphans AS MATERIALIZED (
    SELECT l.job_id FROM looked l
     WHERE NOT EXISTS (SELECT FROM /*$schema*/pqrun.jobs_active a WHERE a.id = l.job_id)
       AND NOT EXISTS (SELECT FROM /*$schema*/pqrun.jobs_finished f WHERE f.id = l.job_id)
), gone AS (
    DELETE FROM /*$schema*/pqrun.progress p USING orphans o WHERE p.job_id = o.job_id RETURNING p.job_id
)
SELECT (SELECT max(job_id) FROM looked) AS last_id, (SELECT count(*) FROM looked)::integer AS looked,
       (SELECT count(*) FROM gone)::integer AS deleted
