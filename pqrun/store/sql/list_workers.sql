-- The registered workers with the jobs that they hold, living ones first, the longest there first. $1 seconds float8: a beat older than this
-- is no sign of life  $2 limit integer. Few rows; the jobs of each by jobs_active_running. By the database's clock.
SELECT w.id, w.worker_id, w.hostname, w.pid, w.queues, w.job_types, w.started_at, w.beat_at, w.dead_at,
       extract(epoch FROM statement_timestamp() - w.beat_at)::double precision AS beat_age_seconds,
       w.dead_at IS NULL AND w.beat_at >= statement_timestamp() - $1::double precision * interval '1 second' AS is_alive,
       (SELECT count(*) FROM /*$schema*/pqrun.jobs_active a WHERE a.status = 'RUNNING' AND a.worker = w.id) AS running,
       w.concurrency, w.slots::text AS slots, w.wanted::text AS wanted, w.version, w.fetching
  FROM /*$schema*/pqrun.workers w
 ORDER BY is_alive DESC, w.started_at, w.id LIMIT $2::integer
