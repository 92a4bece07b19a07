-- Jobs by id, wherever they live, in the order of ids. $1 id bigint[]. The columns of get.sql; one snapshot, as there.
SELECT id, claim_id, queue, job_type, payload::text AS payload, priority, attempts, max_attempts, run_after, timeout_seconds, locked_at,
       dedupe_key, last_error, created_at, lost, releases, snoozes, backoff_seconds, payload_version, scheduled_for,
       headers::text AS headers, status, locked_by, updated_at, finished_at, duration_ms, result::text AS result, cancel_requested_at
  FROM /*$schema*/pqrun.jobs WHERE id = ANY ($1::bigint[]) ORDER BY id
