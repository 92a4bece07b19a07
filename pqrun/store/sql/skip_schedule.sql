-- Move a schedule on past its next firing, which makes no job. $1 name text  $2 next_at timestamptz as it was read (NULL: not planned)
-- $3 revision bigint the same  $4 the planned time behind it timestamptz
-- The fence is next_at, as in fire_schedules.sql: of a firing and a skip that saw one planned time, one moves it, and the other matches
-- nothing. A worker that slept until the old time finds nothing due: it need not be told. By the primary key.
UPDATE /*$schema*/pqrun.schedules s
   SET next_at = $4::timestamptz, updated_at = clock_timestamp()
 WHERE s.name = $1::text AND s.next_at IS NOT DISTINCT FROM $2::timestamptz AND s.revision = $3::bigint
   AND s.paused_at IS NULL AND s.orphaned_at IS NULL
RETURNING s.name
