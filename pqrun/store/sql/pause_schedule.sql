-- Stop a schedule from firing. $1 name text. One row if there is such a schedule; one that is paused already stays so since then.
UPDATE /*$schema*/pqrun.schedules s
   SET paused_at = coalesce(s.paused_at, clock_timestamp()),
       updated_at = CASE WHEN s.paused_at IS NULL THEN clock_timestamp() ELSE s.updated_at END,
       revision = s.revision + (s.paused_at IS NULL)::integer
 WHERE s.name = $1::text
RETURNING s.name
