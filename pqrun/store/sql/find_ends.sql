-- Where these jobs are; result and error only of those that ended. $1 id bigint[]. An id that does not come back does not exist.
SELECT a.id, a.status, NULL::text AS result, NULL::text AS last_error
  FROM /*$schema*/pqrun.jobs_active a WHERE a.id = ANY ($1::bigint[])
UNION ALL
SELECT f.id, f.status, f.result::text, f.last_error FROM /*$schema*/pqrun.jobs_finished f WHERE f.id = ANY ($1::bigint[])
