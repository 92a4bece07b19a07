-- How much is in each queue, and how long its first READY job has been due. $1 most integer: rows counted per lane, and per other state
-- $2 lanes integer: looked at. Bounded, whatever waits: READY rows are counted lane by lane on jobs_active_ready, where each step jumps to the
-- next (queue, priority); SCHEDULED ones from the soonest on, by jobs_active_due; RUNNING ones by jobs_active_running; lost ones by
-- jobs_active_suspect. The first of a lane by place has waited longest in it, give or take what was put back.
WITH RECURSIVE lane AS (
    (SELECT a.queue, a.priority FROM /*$schema*/pqrun.jobs_active a
      WHERE a.status = 'READY' AND a.lost = 0 ORDER BY a.queue, a.priority LIMIT 1)
    UNION ALL
    SELECT n.queue, n.priority
      FROM lane CROSS JOIN LATERAL (
        SELECT a.queue, a.priority FROM /*$schema*/pqrun.jobs_active a
         WHERE a.status = 'READY' AND a.lost = 0 AND (a.queue, a.priority) > (lane.queue, lane.priority)
         ORDER BY a.queue, a.priority LIMIT 1) n
), lanes AS MATERIALIZED (
    SELECT * FROM lane LIMIT $2::integer
), counted AS (
    SELECT l.queue, c.jobs AS ready, 0::bigint AS scheduled, 0::bigint AS running, f.due
      FROM lanes l
     CROSS JOIN LATERAL (
        SELECT count(*) AS jobs
          FROM (SELECT FROM /*$schema*/pqrun.jobs_active a
                 WHERE a.status = 'READY' AND a.lost = 0 AND a.queue = l.queue AND a.priority = l.priority LIMIT $1::integer) r) c
     CROSS JOIN LATERAL (
        SELECT greatest(a.run_after, a.created_at) AS due FROM /*$schema*/pqrun.jobs_active a
         WHERE a.status = 'READY' AND a.lost = 0 AND a.queue = l.queue AND a.priority = l.priority ORDER BY a.place LIMIT 1) f
    UNION ALL
    SELECT s.queue, count(*), 0, 0, min(s.due)
      FROM (SELECT a.queue, greatest(a.run_after, a.created_at) AS due FROM /*$schema*/pqrun.jobs_active a
             WHERE a.status = 'READY' AND a.lost > 0 LIMIT $1::integer) s
     GROUP BY s.queue
    UNION ALL
    SELECT s.queue, 0, count(*), 0, NULL
      FROM (SELECT a.queue FROM /*$schema*/pqrun.jobs_active a WHERE a.status = 'SCHEDULED' ORDER BY a.run_after LIMIT $1::integer) s
     GROUP BY s.queue
    UNION ALL
    SELECT s.queue, 0, 0, count(*), NULL
      FROM (SELECT a.queue FROM /*$schema*/pqrun.jobs_active a WHERE a.status = 'RUNNING' LIMIT $1::integer) s
     GROUP BY s.queue
)
SELECT queue, sum(ready)::bigint AS ready, sum(scheduled)::bigint AS scheduled, sum(running)::bigint AS running,
       CASE WHEN min(due) IS NOT NULL THEN greatest(extract(epoch FROM clock_timestamp() - min(due)), 0)::double precision END
           AS oldest_ready_seconds
  FROM counted
 GROUP BY queue
 ORDER BY queue
