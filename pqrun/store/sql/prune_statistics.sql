-- Delete a piece of old statistics. $1 age seconds float8  $2 limit integer
-- One worker at a time, as in prune.sql. Counts on the primary key, whose first column is the minute.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtext(/*$channel*/'pqrun:prune_statistics'), 0) AS is_mine
), old AS MATERIALIZED (
    SELECT s.minute, s.worker, s.queue, s.job_type FROM /*$schema*/pqrun.statistics s, turn t
     WHERE t.is_mine AND s.minute < statement_timestamp() - $1::double precision * interval '1 second'
     ORDER BY s.minute, s.worker, s.queue, s.job_type LIMIT $2::integer FOR UPDATE OF s SKIP LOCKED
), gone AS (
    DELETE FROM /*$schema*/pqrun.statistics s USING old o
     WHERE s.minute = o.minute AND s.worker = o.worker AND s.queue = o.queue AND s.job_type = o.job_type
    RETURNING 1
)
SELECT (SELECT is_mine FROM turn) AS is_mine, (SELECT count(*) FROM gone)::integer AS deleted
