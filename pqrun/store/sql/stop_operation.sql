-- Ask an operation to stop: its process does after the piece at hand. One that nobody works on is over at once. $1 id bigint
-- $2 seconds double precision without a sign of life after which nobody works on it  $3 actor text, for the audit log.
WITH asked AS (
    UPDATE /*$schema*/pqrun.operations
       SET stop_asked_at = clock_timestamp(),
           state    = CASE WHEN state = 'COUNTED' OR beat_at < clock_timestamp() - $2::double precision * interval '1 second'
                           THEN 'STOPPED' ELSE state END,
           ended_at = CASE WHEN state = 'COUNTED' OR beat_at < clock_timestamp() - $2::double precision * interval '1 second'
                           THEN clock_timestamp() END,
           ids      = CASE WHEN state = 'COUNTED' OR beat_at < clock_timestamp() - $2::double precision * interval '1 second'
                           THEN NULL ELSE ids END
     WHERE id = $1::bigint AND ended_at IS NULL AND stop_asked_at IS NULL RETURNING id, state, done
)
INSERT INTO /*$schema*/pqrun.audit (actor, action, target, operation_id, jobs, outcome)
SELECT $3::text, 'stop', 'operation ' || id, id, done, CASE state WHEN 'STOPPED' THEN 'stopped' ELSE 'asked to stop' END FROM asked
RETURNING id
