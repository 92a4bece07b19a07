-- Write the last report of each of these claims. $1 id bigint[], ascending  $2 claim_id bigint[]  $3 value float8[]  $4 message text[]
-- Found by primary key alone: the condition on locked_at, not on status, keeps the planner off jobs_active_running, as in settle.sql.
--
-- Only a claim that holds may report. Its row is locked FOR SHARE, which no change of the row gets past, so a settle or a recovery comes
-- before (then the claim is gone, and nothing is written) or after (then its report stands). Whoever wants to change the row waits for this
-- one statement at most; this one waits for nobody: SKIP LOCKED, so it can be part of no deadlock. A row of progress is never waited for
-- either: who writes or deletes one holds its job, and the sweep takes only those without a job.
-- Rows: the claims that were written; and, when some were not, all that still hold, among which are those that somebody had locked.
-- (No join of the input with what was written: under these settings of the planner it would be as long as the square of the batch.)
WITH input AS MATERIALIZED (
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::double precision[], $4::text[]) AS u(id, claim_id, value, message)
), held AS MATERIALIZED (
    SELECT u.*, h.attempts
      FROM input u
     CROSS JOIN LATERAL (
        SELECT a.attempts FROM /*$schema*/pqrun.jobs_active a
         WHERE a.id = u.id AND a.claim_id = u.claim_id AND a.locked_at IS NOT NULL
           FOR SHARE SKIP LOCKED) h
), written AS (
    INSERT INTO /*$schema*/pqrun.progress AS p (job_id, claim_id, attempt, value, message, reported_at)
    SELECT id, claim_id, attempts, value, message, clock_timestamp() FROM held
    ON CONFLICT (job_id) DO UPDATE
       SET claim_id = excluded.claim_id, attempt = excluded.attempt, value = excluded.value, message = excluded.message,
           reported_at = excluded.reported_at
    RETURNING p.job_id, p.claim_id
)
SELECT job_id AS id, claim_id, true AS is_written FROM written
UNION ALL
SELECT u.id, u.claim_id, false
  FROM input u
 CROSS JOIN LATERAL (SELECT FROM /*$schema*/pqrun.jobs_active a WHERE a.id = u.id AND a.claim_id = u.claim_id OFFSET 0) a
 WHERE (SELECT count(*) FROM written) < (SELECT count(*) FROM input)
