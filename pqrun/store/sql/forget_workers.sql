-- Remove dead workers that hold no RUNNING job any more. $1 seconds float8: how long a grave is kept, so that a claim that was under
-- way when its worker was taken for dead is still found.
DELETE FROM /*$schema*/pqrun.workers w
 WHERE w.dead_at < clock_timestamp() - $1::double precision * interval '1 second'
   AND NOT EXISTS (SELECT FROM /*$schema*/pqrun.jobs_active a WHERE a.status = 'RUNNING' AND a.worker = w.id)
RETURNING w.id
