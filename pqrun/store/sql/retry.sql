-- A finished job → READY with attempts 0 and finish fields NULL, keeping last_error. $1 id bigint  $2 force boolean: DONE too
-- The source is locked first; only what was inserted is deleted, so a key that is taken leaves the finished row untouched.
-- One row if the source was there and allowed: retried says whether it moved (no: its dedupe key is taken).
WITH source AS MATERIALIZED (
    SELECT f.* FROM /*$schema*/pqrun.jobs_finished f WHERE f.id = $1::bigint AND (f.status <> 'DONE' OR $2::boolean) FOR UPDATE
), moved AS (
    INSERT INTO /*$schema*/pqrun.jobs_active AS a
           (id, place, run_after, created_at, timeout_seconds, max_attempts, priority, queue, job_type, status, dedupe_key, payload,
            last_error, backoff_seconds, payload_version, scheduled_for, headers)
    SELECT id, nextval(/*$literal*/'pqrun.jobs_place_seq'), clock_timestamp(), created_at, timeout_seconds, max_attempts, priority, queue,
           job_type, 'READY', dedupe_key, payload, last_error, backoff_seconds, payload_version, scheduled_for, headers
      FROM source
    ON CONFLICT (job_type, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING a.id, a.queue, a.priority
), gone AS (
    DELETE FROM /*$schema*/pqrun.jobs_finished f USING moved m WHERE f.id = m.id RETURNING f.id
), reports AS (
    DELETE FROM /*$schema*/pqrun.progress p USING moved m WHERE p.job_id = m.id   -- attempts begin anew: it would pass for one of them
)
SELECT s.job_type, s.dedupe_key, EXISTS (SELECT FROM gone) AS retried,
       (SELECT count(pg_notify(/*$channel*/'pqrun', 'ready:' || priority || ':' || queue)) FROM moved) AS told
  FROM source s
