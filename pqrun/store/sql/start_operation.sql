-- COUNTED → RUNNING, or a RUNNING one whose process gave no sign of life for $3 seconds double precision, taken over.
-- $1 id bigint  $2 matched bigint: what its author saw; another number starts nothing. No row: it cannot be started.
UPDATE /*$schema*/pqrun.operations
   SET state = 'RUNNING', started_at = coalesce(started_at, clock_timestamp()), beat_at = clock_timestamp()
 WHERE id = $1::bigint AND matched = $2::bigint AND stop_asked_at IS NULL
   AND (state = 'COUNTED' OR (state = 'RUNNING' AND beat_at < clock_timestamp() - $3::double precision * interval '1 second'))
RETURNING id, actor, action, arguments::text AS arguments, query, ids, position
