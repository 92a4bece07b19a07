-- Which of these claims still hold, and which were asked to cancel. Writes nothing, locks nothing.
-- $1 id bigint[]  $2 claim_id bigint[]. Found by primary key alone.
SELECT u.id, u.claim_id, a.is_cancelled
  FROM unnest($1::bigint[], $2::bigint[]) AS u(id, claim_id)
 CROSS JOIN LATERAL (
    SELECT a.cancel_requested_at IS NOT NULL AS is_cancelled FROM /*$schema*/pqrun.jobs_active a
     WHERE a.id = u.id AND a.claim_id = u.claim_id OFFSET 0) a
