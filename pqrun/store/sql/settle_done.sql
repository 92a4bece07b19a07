-- Write that claimed jobs are DONE: what settle.sql does of these, and most batches hold nothing else. A job that was asked to cancel is
-- left to settle.sql, which keeps its attempt; so this one has no part in attempts: planning for them cost a single job a fifth.
-- $1 id bigint[], ascending, as text ('{1,2}')  $2 claim_id bigint[] as text  $3 result text[] (JSON), empty: none
-- $4 duration_ms bigint[] as text  $5 awaited bigint[]: ids that somebody waits for
-- Rows are found by primary key alone, and what ends is deleted without a lock before: see settle.sql. When a cancel request comes in
-- between, the DELETE waits, sees it, and passes the row.
-- Rows: one with the number of those that ended; where that is not all of them, also each that ended.
WITH input AS MATERIALIZED (
    SELECT u.* FROM unnest($1::text::bigint[], $2::text::bigint[], $3::text[], $4::text::bigint[]) AS u(id, claim_id, result, duration_ms)
), ended AS (
    DELETE FROM /*$schema*/pqrun.jobs_active a USING input u
     WHERE a.id = u.id AND a.claim_id IS NOT DISTINCT FROM u.claim_id AND a.locked_at IS NOT NULL AND a.cancel_requested_at IS NULL
    RETURNING u.result AS new_result, u.duration_ms AS new_duration_ms, a.*
), finished AS (
    INSERT INTO /*$schema*/pqrun.jobs_finished
           (id, place, claim_id, worker, run_after, locked_at, finished_at, cancel_requested_at, created_at, updated_at, timeout_seconds,
            duration_ms, attempts, max_attempts, lost, releases, snoozes, priority, queue, job_type, status, locked_by, dedupe_key,
            payload, last_error, result, backoff_seconds, payload_version, scheduled_for, headers)
    SELECT id, place, claim_id, worker, run_after, locked_at, clock_timestamp(), cancel_requested_at, created_at, clock_timestamp(),
           timeout_seconds, new_duration_ms, attempts, max_attempts, lost, releases, snoozes, priority, queue, job_type, 'DONE', locked_by,
           dedupe_key, payload, last_error, new_result::jsonb, backoff_seconds, payload_version, scheduled_for, headers
      FROM ended
), announced AS MATERIALIZED (
    SELECT count(pg_notify(/*$channel*/'pqrun:done', ids)) AS messages FROM (
        SELECT string_agg(n.id::text, ',') AS ids   -- in pieces: a message is limited to 8,000 bytes
          FROM (SELECT o.id, row_number() OVER () / 300 AS piece FROM ended o WHERE o.id = ANY ($5::bigint[])) n
         WHERE cardinality($5::bigint[]) > 0
         GROUP BY n.piece) d
)
SELECT NULL::bigint AS id, NULL::bigint AS claim_id, (SELECT count(*) FROM ended) AS ended, (SELECT messages FROM announced) AS messages
UNION ALL
SELECT id, claim_id, NULL, NULL FROM ended WHERE (SELECT count(*) FROM ended) < (SELECT count(*) FROM input)
