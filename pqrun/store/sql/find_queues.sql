-- What each queue looks like that has active jobs, is paused or is served. $1 rows counted integer: no count goes beyond it; those of
-- SCHEDULED and RUNNING jobs stop there for all queues together, as no index has them by queue  $2 lanes integer
-- Counts on jobs_active_ready (a jump to each lane, then a bounded walk), jobs_active_suspect, jobs_active_due and jobs_active_running.
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
    SELECT queue, priority FROM lane LIMIT $2::integer
), head AS (
    SELECT l.queue, max(date_part('epoch', statement_timestamp() - h.run_after)) AS seconds
      FROM lanes l CROSS JOIN LATERAL (
        SELECT a.run_after FROM /*$schema*/pqrun.jobs_active a
         WHERE a.status = 'READY' AND a.lost = 0 AND a.queue = l.queue AND a.priority = l.priority
         ORDER BY a.place LIMIT 1) h
     GROUP BY l.queue
), ready AS (
    SELECT q.queue, count(*) AS jobs
      FROM (SELECT DISTINCT queue FROM lanes) q CROSS JOIN LATERAL (
        SELECT FROM /*$schema*/pqrun.jobs_active a WHERE a.status = 'READY' AND a.lost = 0 AND a.queue = q.queue LIMIT $1::integer) a
     GROUP BY q.queue
), suspect AS (
    SELECT s.queue, count(*) AS jobs, max(date_part('epoch', statement_timestamp() - s.run_after)) AS seconds
      FROM (SELECT a.queue, a.run_after FROM /*$schema*/pqrun.jobs_active a WHERE a.status = 'READY' AND a.lost > 0 LIMIT $1::integer) s
     GROUP BY s.queue
), scheduled AS (
    SELECT s.queue, count(*) AS jobs, count(*) FILTER (WHERE s.attempts > 0) AS failing
      FROM (SELECT a.queue, a.attempts FROM /*$schema*/pqrun.jobs_active a
             WHERE a.status = 'SCHEDULED' ORDER BY a.run_after, a.id LIMIT $1::integer) s
     GROUP BY s.queue
), running AS (
    SELECT r.queue, count(*) AS jobs
      FROM (SELECT a.queue FROM /*$schema*/pqrun.jobs_active a WHERE a.status = 'RUNNING' ORDER BY a.worker LIMIT $1::integer) r
     GROUP BY r.queue
), alive AS MATERIALIZED (
    SELECT w.queues, w.slots, w.concurrency - (SELECT coalesce(sum(s.value::integer), 0) FROM jsonb_each_text(w.slots) s) AS rest,
           w.concurrency, w.fetching
      FROM /*$schema*/pqrun.workers w WHERE w.dead_at IS NULL
), paused AS (
    SELECT p.name, p.paused_at, p.reason FROM /*$schema*/pqrun.pauses p WHERE p.kind = 'queue'
), named AS (
    SELECT queue AS name FROM lanes UNION SELECT queue FROM suspect UNION SELECT queue FROM scheduled UNION SELECT queue FROM running
    UNION SELECT p.name FROM paused p UNION SELECT q.name FROM alive w, unnest(w.queues) AS q(name)
)
SELECT n.name, coalesce(ready.jobs, 0) + coalesce(suspect.jobs, 0) AS ready, coalesce(scheduled.jobs, 0) AS scheduled,
       coalesce(running.jobs, 0) AS running, coalesce(scheduled.failing, 0) AS failing,
       coalesce(ready.jobs, 0) >= $1::integer OR (SELECT sum(jobs) FROM suspect) >= $1::integer AS is_ready_cut,
       coalesce((SELECT sum(jobs) FROM scheduled) >= $1::integer, false) AS is_scheduled_cut,
       coalesce((SELECT sum(jobs) FROM running) >= $1::integer, false) AS is_running_cut,
       greatest(head.seconds, suspect.seconds) AS oldest_ready_seconds, paused.paused_at, paused.reason, served.workers, served.slots,
       served.paused_workers
  FROM named n
  LEFT JOIN head ON head.queue = n.name
  LEFT JOIN ready ON ready.queue = n.name
  LEFT JOIN suspect ON suspect.queue = n.name
  LEFT JOIN scheduled ON scheduled.queue = n.name
  LEFT JOIN running ON running.queue = n.name
  LEFT JOIN paused ON paused.name = n.name
 CROSS JOIN LATERAL (
    SELECT count(*) AS workers, count(*) FILTER (WHERE NOT w.fetching) AS paused_workers,
           coalesce(sum(least(coalesce((w.slots ->> n.name)::integer, greatest(w.rest, 1)), w.concurrency)::integer)
                        FILTER (WHERE w.fetching), 0) AS slots
      FROM alive w WHERE w.queues IS NULL OR n.name = ANY (w.queues)) served
 ORDER BY n.name
