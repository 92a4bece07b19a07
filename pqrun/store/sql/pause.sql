-- Pause a queue or a task for all workers. $1 kind text: 'queue' or 'task'  $2 name text  $3 reason text
-- One row if it was not paused before; a pause keeps its time and its reason. The lock is the one that claims share: it is granted when
-- no claim is under way that has not seen this pause, so each claim of it was made before paused_at, whatever its commit.
WITH alone AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(hashtext(/*$channel*/'pqrun'), -1)
), written AS (
    INSERT INTO /*$schema*/pqrun.pauses (kind, name, paused_at, reason)
    SELECT $1::text, $2::text, clock_timestamp(), $3::text FROM alone
    ON CONFLICT (kind, name) DO NOTHING
    RETURNING name
)
SELECT name, pg_notify(/*$channel*/'pqrun', 'pauses') IS NOT NULL AS told FROM written
