-- The FAILED jobs of a group of errors, a piece of them: those whose newest kept attempt has this fingerprint. $1 fingerprint text
-- $2 before bigint: attempts with a smaller id, from the newest down  $3 limit integer: attempts looked at
-- Behind them one row with the attempt that was looked at last, and how many were. A job that was retried since, and failed in another
-- way, belongs to the group of that. By attempts_fingerprint, attempts_pkey and jobs_finished_pkey.
WITH looked AS MATERIALIZED (
    SELECT a.id, a.job_id FROM /*$schema*/pqrun.attempts a
     WHERE a.fingerprint = $1::text AND a.id < $2::bigint ORDER BY a.id DESC LIMIT $3::integer
)
SELECT l.job_id, NULL::bigint AS last_id, NULL::bigint AS looked
  FROM looked l
 WHERE EXISTS (SELECT FROM /*$schema*/pqrun.jobs_finished f WHERE f.id = l.job_id AND f.status = 'FAILED')
   AND NOT EXISTS (SELECT FROM /*$schema*/pqrun.attempts n WHERE n.job_id = l.job_id AND n.id > l.id)
UNION ALL
SELECT NULL, (SELECT min(id) FROM looked), (SELECT count(*) FROM looked)
