-- What a worker runs, the longest first. $1 workers.id bigint  $2 limit integer. Counts on jobs_active_running.
SELECT a.id, a.job_type, a.queue, a.attempts, a.max_attempts, a.locked_at, a.timeout_seconds, a.cancel_requested_at
  FROM /*$schema*/pqrun.jobs_active a WHERE a.worker = $1::bigint AND a.status = 'RUNNING' ORDER BY a.locked_at, a.id LIMIT $2::integer
