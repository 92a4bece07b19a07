-- Move every time of every job back, as if so long had passed, and the plans of the schedules. $1 seconds float8
-- Workers are told of the first job that may have become due, and to look at the schedules. For tests.
WITH past AS (
    SELECT $1::double precision * interval '1 second' AS by
), active AS (
    UPDATE /*$schema*/pqrun.jobs_active a
       SET run_after = a.run_after - p.by, locked_at = a.locked_at - p.by, cancel_requested_at = a.cancel_requested_at - p.by,
           created_at = a.created_at - p.by, updated_at = a.updated_at - p.by, scheduled_for = a.scheduled_for - p.by
      FROM past p
    RETURNING a.status, a.run_after
), finished AS (
    UPDATE /*$schema*/pqrun.jobs_finished f
       SET run_after = f.run_after - p.by, locked_at = f.locked_at - p.by, cancel_requested_at = f.cancel_requested_at - p.by,
           created_at = f.created_at - p.by, updated_at = f.updated_at - p.by, finished_at = f.finished_at - p.by,
           scheduled_for = f.scheduled_for - p.by
      FROM past p
    RETURNING f.id
), planned AS (
    UPDATE /*$schema*/pqrun.schedules s
       SET next_at = s.next_at - p.by, last_at = s.last_at - p.by
      FROM past p
    RETURNING s.name
), first AS (
    SELECT min(run_after) AS run_after FROM active WHERE status = 'SCHEDULED'
)
SELECT (SELECT count(*) FROM active) + (SELECT count(*) FROM finished) AS jobs,
       (SELECT count(pg_notify(/*$channel*/'pqrun', 'due:' || extract(epoch FROM run_after))) FROM first WHERE run_after IS NOT NULL)
       + (SELECT count(pg_notify(/*$channel*/'pqrun', 'schedules')) FROM (SELECT FROM planned LIMIT 1) any_planned) AS told
