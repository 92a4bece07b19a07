-- What an operator wants of workers; each follows with its next beat. $1 workers.id bigint[]  $2 wanted text: JSON object, whose
-- keys replace what was wanted before. Locks rows one by one, each for the length of this statement, as beats do. asked_at: before
-- this is seen by anybody, so whatever a worker writes in answer is later.
WITH changed AS (
    UPDATE /*$schema*/pqrun.workers w SET wanted = coalesce(w.wanted, '{}') || $2::text::jsonb
     WHERE w.id = ANY ($1::bigint[]) AND w.dead_at IS NULL
    RETURNING w.id, clock_timestamp() AS asked_at
)
SELECT id, asked_at, (SELECT pg_notify(/*$channel*/'pqrun', 'wanted') IS NOT NULL) AS told FROM changed
