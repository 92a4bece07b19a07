-- When a job that has not started is due. $1 id bigint  $2 run_after timestamptz, or NULL: $3 delay double precision, seconds from now
-- One row with its state from then on; none: it is not there, has started, or another transaction holds it.
-- A job that becomes READY gets a new place, as in promote.sql: cursors of claims may have passed the old one.
WITH target AS MATERIALIZED (
    SELECT a.id, coalesce($2::timestamptz, clock_timestamp() + $3::double precision * interval '1 second') AS due FROM /*$schema*/pqrun.jobs_active a
     WHERE a.id = $1::bigint AND a.status IN ('SCHEDULED', 'READY') AND a.locked_at IS NULL FOR UPDATE SKIP LOCKED
), moved AS (
    UPDATE /*$schema*/pqrun.jobs_active a
       SET run_after = t.due, status = CASE WHEN t.due > clock_timestamp() THEN 'SCHEDULED' ELSE 'READY' END,
           place = nextval(/*$literal*/'pqrun.jobs_place_seq'), updated_at = clock_timestamp()
      FROM target t WHERE a.id = t.id
    RETURNING a.id, a.status, a.run_after, a.queue, a.priority, a.lost
), told AS MATERIALIZED (
    SELECT count(pg_notify(/*$channel*/'pqrun', CASE WHEN m.status = 'SCHEDULED' THEN 'due:' || extract(epoch FROM m.run_after)
                 ELSE CASE WHEN m.lost > 0 THEN 'suspect:' ELSE 'ready:' END || m.priority || ':' || m.queue END)) AS messages FROM moved m
)
SELECT m.id, m.status, (SELECT messages FROM told) AS messages FROM moved m
