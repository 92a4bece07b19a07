-- How long the READY jobs of a queue have been due, the first ones that a worker would look at. $1 queue text
-- $2 bounds float8[]: seconds, ascending; a row per bucket, 0 below the first  $3 rows integer: jobs looked at
-- Counts on jobs_active_ready. Jobs that a dead worker had before are few, and left out.
SELECT width_bucket(r.seconds, $2::double precision[]) AS bucket, count(*) AS jobs
  FROM (SELECT date_part('epoch', statement_timestamp() - a.run_after) AS seconds FROM /*$schema*/pqrun.jobs_active a
         WHERE a.status = 'READY' AND a.lost = 0 AND a.queue = $1::text
         ORDER BY a.queue, a.priority, a.place LIMIT $3::integer) r
 GROUP BY 1 ORDER BY 1
