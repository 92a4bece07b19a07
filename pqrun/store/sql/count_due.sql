-- How many jobs run, or could run now. $1 job types text[]  $2 queues text[], or NULL for all
-- For tests: it reads the whole hot part.
SELECT count(*) AS due
  FROM /*$schema*/pqrun.jobs_active a
 WHERE a.job_type = ANY ($1::text[]) AND ($2::text[] IS NULL OR a.queue = ANY ($2::text[]))
   AND (a.status <> 'SCHEDULED' OR a.run_after <= clock_timestamp())
