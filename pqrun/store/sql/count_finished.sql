-- Jobs that finished in the last $1 seconds double precision, by queue, task and state, of the latest $2 rows integer.
-- Each row says how many were looked at; without jobs there is one whose queue is NULL. Counts on jobs_finished_at.
WITH looked AS MATERIALIZED (
    SELECT f.queue, f.job_type, f.status, f.duration_ms FROM /*$schema*/pqrun.jobs_finished f
     WHERE f.finished_at > statement_timestamp() - $1::double precision * interval '1 second'
     ORDER BY f.finished_at DESC LIMIT $2::integer
)
SELECT t.looked, g.queue, g.job_type, g.status, g.jobs, g.duration_ms
  FROM (SELECT count(*) AS looked FROM looked) t
  LEFT JOIN (SELECT queue, job_type, status, count(*) AS jobs, avg(duration_ms)::bigint AS duration_ms
               FROM looked GROUP BY queue, job_type, status) g ON true
 ORDER BY g.queue, g.job_type, g.status
