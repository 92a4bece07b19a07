-- Of these jobs, those that are still FAILED with a newest kept attempt of this fingerprint. $1 fingerprint text  $2 job ids bigint[]
-- By jobs_finished_pkey and attempts_pkey.
SELECT f.id AS job_id
  FROM /*$schema*/pqrun.jobs_finished f
 WHERE f.id = ANY ($2::bigint[]) AND f.status = 'FAILED'
   AND (SELECT a.fingerprint FROM /*$schema*/pqrun.attempts a WHERE a.job_id = f.id ORDER BY a.id DESC LIMIT 1) = $1::text
