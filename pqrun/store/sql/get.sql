-- One job by id, wherever it lives. $1 id bigint. One snapshot, so a row that is being moved is seen exactly once.
SELECT id, queue, job_type, payload::text AS payload, status, priority, attempts, max_attempts, run_after, timeout_seconds, locked_at,
       locked_by, claim_id, dedupe_key, last_error, finished_at, duration_ms, result::text AS result, created_at, updated_at,
       cancel_requested_at, lost, releases, backoff_seconds
  FROM /*$schema*/pqrun.jobs WHERE id = $1::bigint
