-- Claims of dead workers, locked for the settle that follows in the same transaction. $1 limit integer
-- Counts on jobs_active_running, by equality on worker. A row that somebody has locked is left for the next look.
SELECT a.id, a.claim_id, a.job_type, a.queue, a.attempts, a.max_attempts, a.lost, a.releases, w.worker_id
  FROM /*$schema*/pqrun.workers w
  JOIN /*$schema*/pqrun.jobs_active a ON a.worker = w.id
 WHERE w.dead_at IS NOT NULL AND a.status = 'RUNNING'
 ORDER BY a.id LIMIT $1::integer FOR UPDATE OF a SKIP LOCKED
