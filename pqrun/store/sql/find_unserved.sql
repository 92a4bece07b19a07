-- Job types and queues that wait, and that no living worker serves. $1 rows looked at integer
SELECT DISTINCT s.queue, s.job_type
  FROM (SELECT a.queue, a.job_type FROM /*$schema*/pqrun.jobs_active a WHERE a.status = 'READY' AND a.lost = 0
         ORDER BY a.queue, a.priority, a.place LIMIT $1::integer) s
 WHERE NOT EXISTS (SELECT FROM /*$schema*/pqrun.workers w
                    WHERE w.dead_at IS NULL AND s.job_type = ANY (w.job_types) AND (w.queues IS NULL OR s.queue = ANY (w.queues)))
 LIMIT 100
