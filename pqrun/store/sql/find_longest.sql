-- The jobs that have run longest, of all workers, and the clock; where nothing runs, a row whose id is NULL. $1 rows looked at integer
-- $2 limit integer. Counts on jobs_active_running; there are no more such rows than workers have slots and claims.
SELECT n.now, r.id, r.job_type, r.queue, r.attempts, r.max_attempts, r.locked_by, r.timeout_seconds,
       date_part('epoch', n.now - r.locked_at) AS running_seconds
  FROM (SELECT statement_timestamp() AS now) n
  LEFT JOIN (SELECT a.id, a.job_type, a.queue, a.attempts, a.max_attempts, a.locked_by, a.timeout_seconds, a.locked_at
               FROM /*$schema*/pqrun.jobs_active a WHERE a.status = 'RUNNING' ORDER BY a.worker LIMIT $1::integer) r ON true
 ORDER BY r.locked_at, r.id LIMIT $2::integer
