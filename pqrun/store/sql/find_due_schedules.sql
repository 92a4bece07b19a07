-- Schedules whose time has come, or that have no planned time yet, of job types that the asker serves. $1 job types text[]
-- $2 limit integer, of either kind  $3 app text  $4 names that its code declares text[]
-- Behind them one row without name: seconds until the next (NULL: none), and whether there is one of the app's that its code does not
-- declare. Counts on schedules_due and schedules_declared.
SELECT s.name, s.cron, s.tz, s.every_seconds, s.catch_up, s.jitter_seconds, s.next_at, s.revision, statement_timestamp() AS clock,
       NULL::double precision AS next_in_seconds, NULL::boolean AS has_dropped
  FROM ((SELECT d.* FROM /*$schema*/pqrun.schedules d
          WHERE d.paused_at IS NULL AND d.orphaned_at IS NULL AND d.next_at <= statement_timestamp() AND d.job_type = ANY ($1::text[])
          LIMIT $2::integer)
        UNION ALL
        (SELECT p.* FROM /*$schema*/pqrun.schedules p
          WHERE p.paused_at IS NULL AND p.orphaned_at IS NULL AND p.next_at IS NULL AND p.job_type = ANY ($1::text[])
          LIMIT $2::integer)) s
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, statement_timestamp(),
       (SELECT extract(epoch FROM n.next_at - statement_timestamp())::double precision FROM /*$schema*/pqrun.schedules n
         WHERE n.paused_at IS NULL AND n.orphaned_at IS NULL AND n.next_at > statement_timestamp() AND n.job_type = ANY ($1::text[])
         ORDER BY n.next_at LIMIT 1),
       EXISTS (SELECT FROM /*$schema*/pqrun.schedules c
                WHERE c.origin = 'code' AND c.orphaned_at IS NULL AND c.app = $3::text AND c.name <> ALL ($4::text[]))
