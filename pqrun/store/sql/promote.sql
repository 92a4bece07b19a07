-- SCHEDULED → READY for jobs that are due. $1 from timestamptz: the cursor  $2 limit integer
-- Per lane how many; then one row without queue: seconds until the next that is not due yet (NULL: none), and what
-- the clock shows. Told to all workers: who
-- promotes need not serve these lanes, and whoever came a moment later to promote them finds nothing.
-- Counts on jobs_active_due with run_after as an index boundary. statement_timestamp(), because now() may be the time of a prepare.
WITH due AS MATERIALIZED (
    SELECT a.id, a.run_after FROM /*$schema*/pqrun.jobs_active a
     WHERE a.status = 'SCHEDULED' AND a.run_after >= $1::timestamptz AND a.run_after <= statement_timestamp()
     ORDER BY a.run_after, a.id LIMIT $2::integer FOR UPDATE SKIP LOCKED
), placed AS MATERIALIZED (
    SELECT id, nextval(/*$literal*/'pqrun.jobs_place_seq') AS place FROM due
), promoted AS (
    UPDATE /*$schema*/pqrun.jobs_active a SET status = 'READY', place = p.place, updated_at = clock_timestamp()
      FROM placed p WHERE a.id = p.id
    RETURNING a.queue, a.priority, a.run_after, a.lost
), announced AS MATERIALIZED (
    SELECT count(pg_notify(/*$channel*/'pqrun', m.message)) AS messages
      FROM (SELECT DISTINCT CASE WHEN lost > 0 THEN 'suspect:' ELSE 'ready:' END || priority || ':' || queue AS message
              FROM promoted) m
)
SELECT queue, priority, count(*)::integer AS jobs, max(run_after) AS last_run_after, bool_or(lost > 0) AS suspect,
       NULL::double precision AS next_in_seconds, NULL::double precision AS clock
  FROM promoted GROUP BY queue, priority
UNION ALL
SELECT NULL, NULL, 0, NULL, false,
       (SELECT extract(epoch FROM a.run_after - statement_timestamp())::double precision FROM /*$schema*/pqrun.jobs_active a
         WHERE a.status = 'SCHEDULED' AND a.run_after > statement_timestamp() ORDER BY a.run_after LIMIT 1),
       extract(epoch FROM statement_timestamp())::double precision
  FROM announced
