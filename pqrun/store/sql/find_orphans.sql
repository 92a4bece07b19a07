-- RUNNING rows whose claim belongs to no registered worker (written by hand, registry emptied), once old enough, locked for the settle
-- that follows. $1 stale seconds float8: age without timeout_seconds  $2 margin seconds float8: added to timeout_seconds  $3 limit integer
-- Compared in seconds: a timeout that no interval can hold must not fail the sweep.
SELECT a.id, a.claim_id, a.job_type, a.queue, a.attempts, a.max_attempts, a.lost, a.releases, a.locked_by AS worker_id
  FROM /*$schema*/pqrun.jobs_active a
 WHERE a.status = 'RUNNING'
   AND extract(epoch FROM clock_timestamp() - a.locked_at)::double precision
       > CASE WHEN a.timeout_seconds IS NULL THEN $1::double precision ELSE a.timeout_seconds + $2::double precision END
   AND NOT EXISTS (SELECT FROM /*$schema*/pqrun.workers w WHERE w.id = a.worker)
 ORDER BY a.id LIMIT $3::integer FOR UPDATE OF a SKIP LOCKED
