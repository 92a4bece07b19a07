-- Jobs that have not ended, oldest first, with the seconds until each is due. $1 job types text[], or NULL for all  $2 limit integer
-- The columns of get.sql, then in_seconds. For tools and tests: it reads the whole hot part.
SELECT id, claim_id, queue, job_type, payload::text AS payload, priority, attempts, max_attempts, run_after, timeout_seconds, locked_at,
       dedupe_key, last_error, created_at, lost, releases, snoozes, backoff_seconds, payload_version, scheduled_for,
       headers::text AS headers, status, locked_by, updated_at, finished_at, duration_ms, result::text AS result, cancel_requested_at,
       extract(epoch FROM run_after - clock_timestamp())::double precision AS in_seconds
  FROM /*$schema*/pqrun.jobs_active WHERE $1::text[] IS NULL OR job_type = ANY ($1::text[])
 ORDER BY id LIMIT $2::integer
