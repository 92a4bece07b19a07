-- The registry of workers with how many jobs each runs, the living first. $1 workers.id bigint, or NULL for all  $2 limit integer
-- Counts on jobs_active_running for each.
SELECT w.id, w.worker_id, w.hostname, w.pid, w.queues, w.job_types, w.schedules, w.has_lock, w.started_at, w.beat_at, w.dead_at,
       extract(epoch FROM clock_timestamp() - w.beat_at)::double precision AS beat_seconds,
       (SELECT count(*) FROM /*$schema*/pqrun.jobs_active a WHERE a.worker = w.id AND a.status = 'RUNNING') AS running
  FROM /*$schema*/pqrun.workers w
 WHERE $1::bigint IS NULL OR w.id = $1::bigint
 ORDER BY w.dead_at IS NOT NULL, w.id LIMIT $2::integer
