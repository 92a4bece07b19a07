-- This worker leaves; jobs that it could not give back are recovered as a dead worker's are, by those who are told so here: nobody
-- observes the beat of a worker that is dead already. $1 workers.id bigint
WITH gone AS (
    UPDATE /*$schema*/pqrun.workers SET dead_at = clock_timestamp() WHERE id = $1::bigint AND dead_at IS NULL RETURNING id
)
SELECT g.id,
       (SELECT pg_notify(/*$channel*/'pqrun', 'left:' || g.id) IS NOT NULL
         WHERE EXISTS (SELECT FROM /*$schema*/pqrun.jobs_active a WHERE a.status = 'RUNNING' AND a.worker = g.id)) AS told
  FROM gone g
