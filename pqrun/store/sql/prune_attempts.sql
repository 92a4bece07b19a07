-- Delete attempts whose job is gone: deleted by plain SQL. $1 job id bigint: where the last piece ended  $2 integer: attempts looked at
-- One worker at a time, as prune.sql. A job that moves is in one part or the other in every snapshot, so none that exists is taken for
-- gone. By the primary keys of attempts and of both parts. last_job_id: where the next piece begins, NULL at the end of the table.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtext(/*$channel*/'pqrun:prune'), 0) AS is_mine
), looked AS MATERIALIZED (
    SELECT a.job_id FROM /*$schema*/pqrun.attempts a, turn t
     WHERE t.is_mine AND a.job_id > $1::bigint ORDER BY a.job_id LIMIT $2::integer
), orphaned AS MATERIALIZED (
    SELECT DISTINCT l.job_id FROM looked l
     WHERE NOT EXISTS (SELECT FROM /*$schema*/pqrun.jobs_active j WHERE j.id = l.job_id)
       AND NOT EXISTS (SELECT FROM /*$schema*/pqrun.jobs_finished j WHERE j.id = l.job_id)
), gone AS (
    DELETE FROM /*$schema*/pqrun.attempts a USING orphaned o WHERE a.job_id = o.job_id RETURNING a.id
)
SELECT (SELECT is_mine FROM turn) AS is_mine, (SELECT count(*) FROM gone)::integer AS deleted,
       (SELECT CASE WHEN count(*) = $2::integer THEN max(job_id) END FROM looked) AS last_job_id
