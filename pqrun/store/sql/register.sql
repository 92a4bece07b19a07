-- A new row for this worker process. $1 worker_id text  $2 hostname text  $3 pid integer
INSERT INTO /*$schema*/pqrun.workers (worker_id, hostname, pid) VALUES ($1::text, $2::text, $3::integer) RETURNING id
