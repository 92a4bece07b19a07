-- Add what a worker has counted in whole minutes. $1 minute float8[] (seconds of the epoch)  $2 worker bigint[]  $3 queue text[]
-- $4 job_type text[]  $5 numbers text[]: array literals of started, arrived, done, failed, retrying, snoozed, cancelled, lost, released,
-- run_ms and wait_ms  $6 run_counts text[]  $7 wait_counts text[]: array literals
-- A row is written once, by one worker: a second try, after an answer that was lost, finds it by the primary key and adds nothing.
-- One row, with the database's clock, by which the worker knows its minutes; without input that alone.
WITH input AS MATERIALIZED (
    SELECT u.minute, u.worker, u.queue, u.job_type, u.numbers::bigint[] AS n, u.run_counts::integer[] AS run_counts,
           u.wait_counts::integer[] AS wait_counts
      FROM unnest($1::double precision[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
           AS u(minute, worker, queue, job_type, numbers, run_counts, wait_counts)
), added AS (
    INSERT INTO /*$schema*/pqrun.statistics
           (minute, worker, queue, job_type, started, arrived, done, failed, retrying, snoozed, cancelled, lost, released, run_ms, wait_ms,
            run_counts, wait_counts)
    SELECT to_timestamp(minute), worker, queue, job_type, n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11], run_counts,
           wait_counts
      FROM input
     ORDER BY minute, worker, queue, job_type
    ON CONFLICT (minute, worker, queue, job_type) DO NOTHING
)
SELECT date_part('epoch', clock_timestamp()) AS clock
