-- Jobs by id as lists show them, without payload and result. $1 id bigint[]. By the primary keys of both parts.
-- Of the error its end is enough: there stands the line that names it.
SELECT id, job_type, queue, status, priority, attempts, max_attempts, created_at, run_after, locked_at, finished_at, duration_ms, locked_by,
       dedupe_key, right(last_error, 4000) AS last_error, snoozes, cancel_requested_at, statement_timestamp() AS now
  FROM /*$schema*/pqrun.jobs WHERE id = ANY ($1::bigint[])
