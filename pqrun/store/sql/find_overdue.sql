-- RUNNING rows of living workers that are far beyond their timeout: their worker cannot stop them. $1 margin seconds float8  $2 limit
-- Compared in seconds: a timeout that no interval can hold must not fail the sweep.
SELECT a.id, a.claim_id, a.job_type, a.queue, a.attempts, a.max_attempts, a.lost, a.releases, a.locked_by AS worker_id, a.timeout_seconds,
       a.backoff_seconds
  FROM /*$schema*/pqrun.jobs_active a
 WHERE a.status = 'RUNNING' AND a.timeout_seconds IS NOT NULL
   AND extract(epoch FROM clock_timestamp() - a.locked_at)::double precision > a.timeout_seconds + $1::double precision
   AND EXISTS (SELECT FROM /*$schema*/pqrun.workers w WHERE w.id = a.worker)
 ORDER BY a.id LIMIT $2::integer FOR UPDATE OF a SKIP LOCKED
