-- A new row for this worker process. $1 worker_id text  $2 hostname text  $3 pid integer
-- $4 queues served text[] or NULL for all  $5 job types served text[]  $6 schedules its code declares text[]
-- $7 concurrency integer  $8 slots text: JSON object of queues with slots of their own  $9 fetching boolean: whether it claims
-- $10 version text: of pqrun, or NULL
INSERT INTO /*$schema*/pqrun.workers (worker_id, hostname, pid, queues, job_types, schedules, concurrency, slots, fetching, version)
VALUES ($1::text, $2::text, $3::integer, $4::text[], $5::text[], $6::text[], $7::integer, $8::text::jsonb, $9::boolean, $10::text)
RETURNING id
