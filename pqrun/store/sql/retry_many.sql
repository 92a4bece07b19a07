-- Finished jobs that are in one of these states → READY: what retry.sql does to one. $1 id bigint[]  $2 status text[], finished ones
-- One row for each that moved; of the others nothing is said, nor of rows that another transaction has: inspect_many.sql tells.
-- Places in the order of ids, so the oldest runs first; inserted in the order of keys, as enqueue.sql does: an insert waits for the
-- transaction that is taking its key, and two that wait for each other would be a deadlock.
-- Only what was inserted is deleted, so a key that is taken leaves the finished row untouched.
WITH source AS MATERIALIZED (
    SELECT f.* FROM /*$schema*/pqrun.jobs_finished f
     WHERE f.id = ANY ($1::bigint[]) AND f.status = ANY ($2::text[]) ORDER BY f.id FOR UPDATE SKIP LOCKED
), placed AS MATERIALIZED (
    SELECT s.*, nextval(/*$literal*/'pqrun.jobs_place_seq') AS new_place FROM source s
), moved AS (
    INSERT INTO /*$schema*/pqrun.jobs_active AS a
           (id, place, run_after, created_at, timeout_seconds, max_attempts, priority, queue, job_type, status, dedupe_key, payload,
            last_error, backoff_seconds, payload_version, scheduled_for, headers)
    SELECT id, new_place, clock_timestamp(), created_at, timeout_seconds, max_attempts, priority, queue, job_type, 'READY', dedupe_key,
           payload, last_error, backoff_seconds, payload_version, scheduled_for, headers
      FROM placed ORDER BY job_type, dedupe_key, id
    ON CONFLICT (job_type, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING a.id, a.queue, a.priority
), gone AS (
    DELETE FROM /*$schema*/pqrun.jobs_finished f USING moved m WHERE f.id = m.id RETURNING f.id
), reports AS (
    DELETE FROM /*$schema*/pqrun.progress p USING moved m WHERE p.job_id = m.id
), told AS MATERIALIZED (
    SELECT count(pg_notify(/*$channel*/'pqrun', m.message)) AS messages
      FROM (SELECT DISTINCT 'ready:' || priority || ':' || queue AS message FROM moved) m
)
SELECT g.id, false AS is_requested, t.messages FROM gone g CROSS JOIN told t
