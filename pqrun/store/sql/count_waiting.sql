-- A piece of the jobs that have not finished, counted by task, version and queue. $1 after id bigint  $2 rows integer
-- $3 ids integer: so many of each kind are named. Reads without locks. Counts on jobs_active_pkey with the id as a boundary.
WITH looked AS MATERIALIZED (
    SELECT a.id, a.job_type, a.payload_version, a.queue FROM /*$schema*/pqrun.jobs_active a
     WHERE a.id > $1::bigint ORDER BY a.id LIMIT $2::integer
)
SELECT job_type, payload_version, queue, count(*) AS jobs, max(id) AS last_id, (array_agg(id))[1:$3::integer] AS ids
  FROM looked GROUP BY job_type, payload_version, queue
