-- Jobs by id as lists show them, without payload and result. $1 id bigint[]. By the primary keys of both parts.
SELECT id, job_type, queue, status, priority, attempts, max_attempts, created_at, run_after, locked_at, finished_at, duration_ms, locked_by,
       dedupe_key, last_error, statement_timestamp() AS now
  FROM /*$schema*/pqrun.jobs WHERE id = ANY ($1::bigint[])
