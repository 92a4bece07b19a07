-- Cancel jobs that are in one of these states: what cancel.sql does to one. $1 id bigint[]  $2 status text[], active ones
-- One row for each that was cancelled, or is RUNNING and was asked to stop; of the others nothing is said, nor of rows that another
-- transaction has: inspect_many.sql tells. Ends are announced some hundred to a message, which is limited to 8,000 bytes.
-- For the CASE see cancel.sql: a claim may commit between this statement's snapshot and its lock.
WITH target AS MATERIALIZED (
    SELECT a.id, a.locked_at IS NOT NULL AS is_running FROM /*$schema*/pqrun.jobs_active a
     WHERE a.id = ANY ($1::bigint[]) AND a.status = ANY ($2::text[]) ORDER BY a.id FOR UPDATE SKIP LOCKED
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
), told AS MATERIALIZED (
    SELECT count(pg_notify(/*$channel*/'pqrun', 'cancel:' || coalesce(worker, 0) || ':' || id)) AS messages FROM asked
    UNION ALL
    SELECT count(pg_notify(/*$channel*/'pqrun:done', d.ids))
      FROM (SELECT string_agg(n.id::text, ',') AS ids
              FROM (SELECT id, row_number() OVER () / 300 AS piece FROM finished) n GROUP BY n.piece) d
)
SELECT s.id, s.is_requested, (SELECT sum(messages)::bigint FROM told) AS messages
  FROM (SELECT id, false AS is_requested FROM finished UNION ALL SELECT id, true FROM asked) s
