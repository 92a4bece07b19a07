-- Take schedules out of service that an app's code has dropped. $1 app text  $2 names its code declares now text[]
-- $3 workers.id bigint of the asker. Never one that a living worker declares, and none that was declared after the asker had started:
-- then the asker may be the older code, unless nobody has declared it for an hour. Returns their names.
UPDATE /*$schema*/pqrun.schedules s
   SET orphaned_at = clock_timestamp(), updated_at = clock_timestamp(), revision = s.revision + 1
  FROM /*$schema*/pqrun.workers me
 WHERE me.id = $3::bigint AND s.origin = 'code' AND s.app = $1::text AND s.orphaned_at IS NULL AND s.name <> ALL ($2::text[])
   AND s.declared_at < greatest(me.started_at, clock_timestamp() - interval '1 hour')
   AND NOT EXISTS (SELECT FROM /*$schema*/pqrun.workers w WHERE w.dead_at IS NULL AND s.name = ANY (w.schedules))
RETURNING s.name
