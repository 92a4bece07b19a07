-- Let a paused schedule fire again, from the next planned time on: what came while it was paused was not missed. $1 name text
-- $2 next_at timestamptz  $3 revision bigint: as it was read
WITH resumed AS (
    UPDATE /*$schema*/pqrun.schedules s
       SET paused_at = NULL, next_at = $2::timestamptz, updated_at = clock_timestamp(), revision = s.revision + 1
     WHERE s.name = $1::text AND s.revision = $3::bigint AND s.paused_at IS NOT NULL
    RETURNING s.name
)
SELECT name, (SELECT pg_notify(/*$channel*/'pqrun', 'schedules') IS NOT NULL) AS told FROM resumed
