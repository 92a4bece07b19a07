-- An operation is over, which is noted in the audit log by the same statement. $1 id bigint  $2 state text: DONE, STOPPED or FAILED
-- $3 error text, or NULL  $4 outcome text, for the log. Its ids are given up: the row stays small.
WITH ended AS (
    UPDATE /*$schema*/pqrun.operations SET state = $2::text, error = $3::text, ended_at = clock_timestamp(), ids = NULL
     WHERE id = $1::bigint AND ended_at IS NULL RETURNING id, actor, action, query, matched, done
)
INSERT INTO /*$schema*/pqrun.audit (actor, action, target, operation_id, jobs, outcome)
SELECT actor, action, coalesce(query, matched || ' chosen jobs'), id, done, $4::text FROM ended RETURNING id
