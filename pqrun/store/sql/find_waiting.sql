-- These jobs, if they have not finished, with their payloads. $1 id bigint[]. Reads without locks.
SELECT a.id, a.job_type, a.payload_version, a.payload::text AS payload
  FROM /*$schema*/pqrun.jobs_active a WHERE a.id = ANY ($1::bigint[])
