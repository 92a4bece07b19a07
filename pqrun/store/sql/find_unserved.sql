-- Job types and queues that wait while this worker does not serve them. $1 queues text[] or NULL  $2 types text[]  $3 rows looked at
SELECT DISTINCT s.queue, s.job_type
  FROM (SELECT a.queue, a.job_type FROM /*$schema*/pqrun.jobs_active a WHERE a.status = 'READY' AND a.lost = 0
         ORDER BY a.queue, a.priority, a.place LIMIT $3::integer) s
 WHERE NOT (s.job_type = ANY ($2::text[]) AND ($1::text[] IS NULL OR s.queue = ANY ($1::text[])))
 LIMIT 100
