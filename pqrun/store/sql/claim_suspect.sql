-- READY → RUNNING for one job that was running when a worker died. $1 queues text[] or NULL for all  $2 job types served text[]
-- $3 workers.id bigint  $4 worker_id text  $5 alive bigint[]: ids not to be claimed. Counts on jobs_active_suspect, which is empty unless workers die.
-- What is paused is left, as in claim.sql.
WITH paused AS MATERIALIZED (
    SELECT p.queues, p.tasks FROM /*$schema*/pqrun.paused() p
), picked AS MATERIALIZED (
    SELECT a.id FROM /*$schema*/pqrun.jobs_active a
     WHERE a.status = 'READY' AND a.lost > 0 AND a.attempts < a.max_attempts
       AND ($1::text[] IS NULL OR a.queue = ANY ($1::text[])) AND a.job_type = ANY ($2::text[]) AND a.id <> ALL ($5::bigint[])
       AND a.queue <> ALL ((SELECT queues FROM paused)::text[]) AND a.job_type <> ALL ((SELECT tasks FROM paused)::text[])
       AND EXISTS (SELECT FROM /*$schema*/pqrun.workers w WHERE w.id = $3::bigint AND w.dead_at IS NULL)
     ORDER BY a.priority DESC, a.place LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE /*$schema*/pqrun.jobs_active a
   SET status = 'RUNNING', attempts = a.attempts + 1, locked_at = n.now, locked_by = $4::text, worker = $3::bigint,
       claim_id = nextval(/*$literal*/'pqrun.claims_id_seq'), updated_at = n.now
  FROM picked p CROSS JOIN (SELECT clock_timestamp() AS now) n
 WHERE a.id = p.id
RETURNING 0 AS lane, a.place, a.id, a.claim_id,
       a.queue, a.job_type, a.payload::text AS payload, a.priority, a.attempts, a.max_attempts, date_part('epoch', a.run_after) AS run_after,
       a.timeout_seconds, date_part('epoch', a.locked_at) AS locked_at, a.dedupe_key, a.last_error,
       date_part('epoch', a.created_at) AS created_at, a.lost, a.releases, a.snoozes, a.backoff_seconds, a.payload_version,
       date_part('epoch', a.scheduled_for) AS scheduled_for, a.headers::text AS headers
