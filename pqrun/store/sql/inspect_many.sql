-- What state jobs are in, and for a finished one the active job that has its dedupe key. $1 id bigint[]
-- One snapshot, so a row that is being moved is seen exactly once.
SELECT a.id, a.status, NULL::bigint AS holder FROM /*$schema*/pqrun.jobs_active a WHERE a.id = ANY ($1::bigint[])
UNION ALL
SELECT f.id, f.status, (SELECT a.id FROM /*$schema*/pqrun.jobs_active a WHERE a.job_type = f.job_type AND a.dedupe_key = f.dedupe_key)
  FROM /*$schema*/pqrun.jobs_finished f WHERE f.id = ANY ($1::bigint[])
