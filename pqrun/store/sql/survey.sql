-- The lanes that have READY jobs, one index probe each, and whether suspects wait that are not paused. $1 queues text[] or NULL for all  $2 limit integer
-- Counts on jobs_active_ready: each step jumps to the next (queue, priority).
WITH RECURSIVE lane AS (
    (SELECT a.queue, a.priority FROM /*$schema*/pqrun.jobs_active a
      WHERE a.status = 'READY' AND a.lost = 0 ORDER BY a.queue, a.priority LIMIT 1)
    UNION ALL
    SELECT n.queue, n.priority
      FROM lane CROSS JOIN LATERAL (
        SELECT a.queue, a.priority FROM /*$schema*/pqrun.jobs_active a
         WHERE a.status = 'READY' AND a.lost = 0 AND (a.queue, a.priority) > (lane.queue, lane.priority)
         ORDER BY a.queue, a.priority LIMIT 1) n
), suspect AS (
    SELECT a.queue, a.priority FROM /*$schema*/pqrun.jobs_active a
     WHERE a.status = 'READY' AND a.lost > 0 AND ($1::text[] IS NULL OR a.queue = ANY ($1::text[]))
       AND NOT EXISTS (SELECT FROM /*$schema*/pqrun.pauses p
                        WHERE (p.kind, p.name) = ('queue', a.queue) OR (p.kind, p.name) = ('task', a.job_type)) LIMIT 1
)
(SELECT queue, priority, false AS suspect FROM lane WHERE $1::text[] IS NULL OR queue = ANY ($1::text[]) LIMIT $2::integer)
UNION ALL
SELECT queue, priority, true FROM suspect
