-- What retention would remove: jobs that ended so long ago, counted to a limit, and when the oldest job of the history ended.
-- $1 age seconds float8  $2 limit integer. Counts on jobs_finished_at; statement_timestamp() as in prune.sql.
SELECT (SELECT count(*) FROM (
           SELECT FROM /*$schema*/pqrun.jobs_finished f
            WHERE f.finished_at < statement_timestamp() - $1::double precision * interval '1 second'
            ORDER BY f.finished_at LIMIT $2::integer) o) AS jobs,
       (SELECT f.finished_at FROM /*$schema*/pqrun.jobs_finished f ORDER BY f.finished_at LIMIT 1) AS oldest
