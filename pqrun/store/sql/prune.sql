-- Delete a piece of history, with the attempts and reports of its jobs. $1 age seconds float8  $2 limit integer
-- One worker at a time: who does not get the lock deletes nothing (and says so). Counts on jobs_finished_at; statement_timestamp(),
-- because a volatile clock cannot bound an index: each look for old rows would read the whole history.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtext(/*$channel*/'pqrun:prune'), 0) AS is_mine
), old AS MATERIALIZED (
    SELECT f.id FROM /*$schema*/pqrun.jobs_finished f, turn t
     WHERE t.is_mine AND f.finished_at < statement_timestamp() - $1::double precision * interval '1 second'
     ORDER BY f.finished_at LIMIT $2::integer FOR UPDATE OF f SKIP LOCKED
), gone AS (
    DELETE FROM /*$schema*/pqrun.jobs_finished f USING old o WHERE f.id = o.id RETURNING f.id
), reports AS (
    DELETE FROM /*$schema*/pqrun.progress p USING gone g WHERE p.job_id = g.id
), attempts_gone AS (
    DELETE FROM /*$schema*/pqrun.attempts a USING gone g WHERE a.job_id = g.id
)
SELECT (SELECT is_mine FROM turn) AS is_mine, (SELECT count(*) FROM gone)::integer AS deleted
