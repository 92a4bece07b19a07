-- What workers run of a queue, the longest first. $1 queue text  $2 rows integer: running jobs of all queues that are looked at, as no index
-- has them by queue  $3 limit integer. Counts on jobs_active_running.
SELECT r.id, r.job_type, r.queue, r.attempts, r.max_attempts, r.locked_at, r.timeout_seconds, r.cancel_requested_at, r.worker, r.locked_by
  FROM (SELECT a.id, a.job_type, a.queue, a.attempts, a.max_attempts, a.locked_at, a.timeout_seconds, a.cancel_requested_at, a.worker,
               a.locked_by
          FROM /*$schema*/pqrun.jobs_active a WHERE a.status = 'RUNNING' ORDER BY a.worker LIMIT $2::integer) r
 WHERE r.queue = $1::text
 ORDER BY r.locked_at, r.id LIMIT $3::integer
