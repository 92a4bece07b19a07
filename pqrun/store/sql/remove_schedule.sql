-- Remove a schedule, unless code still declares it: the next worker would bring it back. $1 name text
-- One row if there is such a schedule: whether it went.
WITH held AS MATERIALIZED (
    SELECT s.name, s.origin = 'operator' OR s.orphaned_at IS NOT NULL AS is_free, s.app
      FROM /*$schema*/pqrun.schedules s WHERE s.name = $1::text FOR UPDATE
), gone AS (
    DELETE FROM /*$schema*/pqrun.schedules s USING held h WHERE s.name = h.name AND h.is_free RETURNING s.name
)
SELECT h.app, EXISTS (SELECT FROM gone) AS removed FROM held h
