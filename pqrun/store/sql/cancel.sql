-- Cancel one job. $1 id bigint 
-- outcome: CANCELLED (it had not started and is finished now), REQUESTED (it is RUNNING; its worker is told), ALREADY_FINISHED,
-- LOCKED (another transaction has the row: look again in a new statement), NOT_FOUND.
-- A claim may commit between this statement's snapshot and its lock: target then has the locked row as it is now, while the UPDATE first
-- checks constraints on the row of the snapshot, which was not RUNNING yet. Hence the CASE: PostgreSQL evaluates it again on the new row.
--
-- A job that had not started is announced whoever waits or nobody: only workers remember who does, and no worker has this one. To find out
-- (locks or sessions of listeners) would cost more than one message of a statement that people call by hand.
WITH target AS MATERIALIZED (
    SELECT a.id, a.locked_at IS NOT NULL AS is_running FROM /*$schema*/pqrun.jobs_active a WHERE a.id = $1::bigint FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM /*$schema*/pqrun.jobs_active a USING target t WHERE a.id = t.id AND NOT t.is_running RETURNING a.*
), finished AS (
    INSERT INTO /*$schema*/pqrun.jobs_finished
           (id, place, run_after, finished_at, created_at, updated_at, timeout_seconds, attempts, max_attempts, lost, releases, snoozes,
            priority, queue, job_type, status, dedupe_key, payload, last_error, backoff_seconds, payload_version, scheduled_for,
            headers)
    SELECT id, place, run_after, clock_timestamp(), created_at, clock_timestamp(), timeout_seconds, attempts, max_attempts, lost, releases,
           snoozes, priority, queue, job_type, 'CANCELLED', dedupe_key, payload, last_error, backoff_seconds, payload_version, scheduled_for,
           headers
      FROM gone
    RETURNING id
), asked AS (
    UPDATE /*$schema*/pqrun.jobs_active a
       SET cancel_requested_at = CASE WHEN a.locked_at IS NOT NULL THEN coalesce(a.cancel_requested_at, clock_timestamp()) END,
           updated_at = clock_timestamp()
      FROM target t WHERE a.id = t.id AND t.is_running
    RETURNING a.id, a.worker
)
SELECT CASE WHEN EXISTS (SELECT FROM finished) THEN 'CANCELLED'
            WHEN EXISTS (SELECT FROM asked) THEN 'REQUESTED'
            WHEN EXISTS (SELECT FROM /*$schema*/pqrun.jobs_active a WHERE a.id = $1::bigint) THEN 'LOCKED'
            WHEN EXISTS (SELECT FROM /*$schema*/pqrun.jobs_finished f WHERE f.id = $1::bigint) THEN 'ALREADY_FINISHED'
            ELSE 'NOT_FOUND' END AS outcome,
       (SELECT count(pg_notify(/*$channel*/'pqrun', 'cancel:' || coalesce(worker, 0) || ':' || id)) FROM asked) AS told,
       (SELECT count(pg_notify(/*$channel*/'pqrun:done', id::text)) FROM finished) AS announced
