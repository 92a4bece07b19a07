-- What the payloads of these tasks looked like to the code that ran them last, by version. $1 job_type text[]
SELECT s.job_type, s.version, s.shape::text AS shape
  FROM /*$schema*/pqrun.task_shapes s WHERE s.job_type = ANY ($1::text[])
