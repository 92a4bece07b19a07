-- The workers that live, by age; no parameters. RUNNING jobs are counted by jobs_active_running.
SELECT w.id, w.worker_id, w.hostname, w.pid, w.queues, w.slots::text AS slots, w.concurrency, w.job_types, w.wanted::text AS wanted,
       w.started_at, w.beat_at,
       (SELECT count(*) FROM /*$schema*/pqrun.jobs_active a WHERE a.status = 'RUNNING' AND a.worker = w.id) AS running
  FROM /*$schema*/pqrun.workers w WHERE w.dead_at IS NULL ORDER BY w.id
