-- Note what was done from the pages. $1 actor text  $2 action text  $3 target text  $4 job_id bigint  $5 made_id bigint
-- $6 operation_id bigint  $7 jobs bigint  $8 outcome text
INSERT INTO /*$schema*/pqrun.audit (actor, action, target, job_id, made_id, operation_id, jobs, outcome)
VALUES ($1::text, $2::text, $3::text, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $8::text) RETURNING id
