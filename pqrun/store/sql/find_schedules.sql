-- Schedules by name, and what the clock shows. $1 names text[] or NULL for all. At least one row: without schedules its name is NULL.
SELECT s.name, s.job_type, s.payload::text AS payload, s.queue, s.priority, s.max_attempts, s.timeout_seconds, s.dedupe_key,
       s.backoff_seconds, s.cron, s.tz, s.every_seconds, s.catch_up, s.overlap, s.jitter_seconds, s.payload_version, s.next_at,
       s.last_at, s.last_job_id, s.paused_at, s.orphaned_at, s.origin, s.app, s.code_definition, s.revision, s.created_at, s.updated_at,
       statement_timestamp() AS clock
  FROM (SELECT) one
  LEFT JOIN /*$schema*/pqrun.schedules s ON $1::text[] IS NULL OR s.name = ANY ($1::text[])
 ORDER BY s.name
