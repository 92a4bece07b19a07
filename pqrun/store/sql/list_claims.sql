-- The jobs that a worker holds. $1 workers.id bigint. Counts on jobs_active_running, by equality on worker.
SELECT a.id FROM /*$schema*/pqrun.jobs_active a WHERE a.status = 'RUNNING' AND a.worker = $1::bigint ORDER BY a.id
