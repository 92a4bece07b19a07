-- Job types and queues that wait, and that no living worker serves; what is paused waits on purpose. $1 rows looked at integer, per lane
-- $2 lanes integer. Counts on jobs_active_ready: each step jumps to the next (queue, priority), so a long queue hides no other.
WITH RECURSIVE lane AS (
    (SELECT a.queue, a.priority FROM /*$schema*/pqrun.jobs_active a
      WHERE a.status = 'READY' AND a.lost = 0 ORDER BY a.queue, a.priority LIMIT 1)
    UNION ALL
    SELECT n.queue, n.priority
      FROM lane CROSS JOIN LATERAL (
        SELECT a.queue, a.priority FROM /*$schema*/pqrun.jobs_active a
         WHERE a.status = 'READY' AND a.lost = 0 AND (a.queue, a.priority) > (lane.queue, lane.priority)
         ORDER BY a.queue, a.priority LIMIT 1) n
), waiting AS (
    SELECT DISTINCT s.queue, s.job_type
      FROM (SELECT l.queue, l.priority FROM lane l
             WHERE NOT EXISTS (SELECT FROM /*$schema*/pqrun.pauses p WHERE p.kind = 'queue' AND p.name = l.queue)
             LIMIT $2::integer) l
     CROSS JOIN LATERAL (
        SELECT a.queue, a.job_type FROM /*$schema*/pqrun.jobs_active a
         WHERE a.status = 'READY' AND a.lost = 0 AND a.queue = l.queue AND a.priority = l.priority
         ORDER BY a.place LIMIT $1::integer) s
)
SELECT s.queue, s.job_type
  FROM waiting s
 WHERE NOT EXISTS (SELECT FROM /*$schema*/pqrun.workers w
                    WHERE w.dead_at IS NULL AND s.job_type = ANY (w.job_types) AND (w.queues IS NULL OR s.queue = ANY (w.queues)))
   AND NOT EXISTS (SELECT FROM /*$schema*/pqrun.pauses p WHERE p.kind = 'task' AND p.name = s.job_type)
 LIMIT 100
