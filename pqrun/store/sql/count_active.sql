-- Jobs that have not finished, by queue, task and state, of the $1 oldest rows integer; each row says how many were looked at.
-- Capped, so that a queue of ten million costs a page no more than the cap. Counts on jobs_active_pkey. oldest_due: since when the one
-- that has waited longest could have started. At least one row: without jobs its queue is NULL.
WITH looked AS MATERIALIZED (
    SELECT a.queue, a.job_type, a.status, a.run_after, a.attempts + a.snoozes > 0 AS is_again
      FROM /*$schema*/pqrun.jobs_active a ORDER BY a.id LIMIT $1::integer
)
SELECT t.looked, statement_timestamp() AS now, g.queue, g.job_type, g.status, g.jobs, g.again, g.oldest_due
  FROM (SELECT count(*) AS looked FROM looked) t
  LEFT JOIN (SELECT queue, job_type, status, count(*) AS jobs, count(*) FILTER (WHERE is_again) AS again, min(run_after) AS oldest_due
               FROM looked GROUP BY queue, job_type, status) g ON true
 ORDER BY g.queue, g.job_type, g.status
