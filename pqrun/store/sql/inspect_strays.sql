-- RUNNING rows that no registered worker holds, for pqrun doctor. $1 limit integer: counted at most.
-- Counts on jobs_active_running: as many rows as jobs run.
SELECT count(*) AS jobs, min(s.id) AS first_id
  FROM (SELECT a.id FROM /*$schema*/pqrun.jobs_active a
         WHERE a.status = 'RUNNING' AND NOT EXISTS (SELECT FROM /*$schema*/pqrun.workers w WHERE w.id = a.worker)
         LIMIT $1::integer) s
