-- Claims of this worker that it does not know of: the answer to a claim was lost on the way. $1 workers.id bigint
-- $2 known claim_ids bigint[]  $3 limit integer. Writes nothing. Counts on jobs_active_running; asked only after such a claim.
SELECT 0 AS lane, a.place, a.id, a.claim_id,
       a.queue, a.job_type, a.payload::text AS payload, a.priority, a.attempts, a.max_attempts, date_part('epoch', a.run_after) AS run_after,
       a.timeout_seconds, date_part('epoch', a.locked_at) AS locked_at, a.dedupe_key, a.last_error,
       date_part('epoch', a.created_at) AS created_at, a.lost, a.releases, a.snoozes, a.backoff_seconds, a.payload_version,
       date_part('epoch', a.scheduled_for) AS scheduled_for, a.headers::text AS headers
  FROM /*$schema*/pqrun.jobs_active a
 WHERE a.worker = $1::bigint AND a.status = 'RUNNING' AND a.claim_id <> ALL ($2::bigint[])
 LIMIT $3::integer
