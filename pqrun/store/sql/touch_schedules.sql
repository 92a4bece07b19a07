-- The code of a worker that starts declares these as they were last seen. $1 name text[]  $2 code_definition text[]  $3 app text
-- Returns those of which that is true; the others are to be declared (declare_schedule.sql). Locked in the order of their names.
WITH known AS MATERIALIZED (
    SELECT s.name FROM /*$schema*/pqrun.schedules s JOIN unnest($1::text[], $2::text[]) AS u(name, definition) ON s.name = u.name
     WHERE s.origin = 'code' AND s.app = $3::text AND s.orphaned_at IS NULL AND s.code_definition = u.definition
     ORDER BY s.name FOR UPDATE OF s
)
UPDATE /*$schema*/pqrun.schedules s SET declared_at = clock_timestamp() FROM known k WHERE s.name = k.name RETURNING s.name
