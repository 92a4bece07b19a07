-- What was done to one job from the pages, and what made it, the latest first. $1 job bigint  $2 rows integer
-- Counts on audit_job and audit_made.
(SELECT id, at, actor, action, target, job_id, made_id, operation_id, jobs, outcome
   FROM /*$schema*/pqrun.audit WHERE job_id = $1::bigint ORDER BY id DESC LIMIT $2::integer)
UNION
(SELECT id, at, actor, action, target, job_id, made_id, operation_id, jobs, outcome
   FROM /*$schema*/pqrun.audit WHERE made_id = $1::bigint ORDER BY id DESC LIMIT $2::integer)
ORDER BY id DESC LIMIT $2::integer
