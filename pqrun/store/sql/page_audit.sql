-- What was done from the pages, the latest first. $1 before id bigint  $2 rows integer. Counts on the primary key.
SELECT id, at, actor, action, target, job_id, made_id, operation_id, jobs, outcome
  FROM /*$schema*/pqrun.audit WHERE id < $1::bigint ORDER BY id DESC LIMIT $2::integer
