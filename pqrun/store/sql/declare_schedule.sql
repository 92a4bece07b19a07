-- Code declares a schedule that is new, differs from the last code seen, or was orphaned. $1 name text  $2 job_type text
-- $3 payload text (JSON)  $4 queue text  $5 priority smallint  $6 max_attempts integer  $7 timeout_seconds float8  $8 dedupe_key text
-- $9 backoff_seconds float8[]  $10 cron text  $11 tz text  $12 every_seconds float8  $13 catch_up text  $14 overlap text
-- $15 jitter_seconds float8  $16 payload_version integer  $17 next_at timestamptz  $18 app text  $19 code_definition text
-- $20 paused boolean: when it is new
--
-- Where the rule stays, the plan stays, so what was missed meanwhile is caught up with. A pause outlives all of it. An orphan
-- that comes back as it was last seen keeps what an operator made of it, and is planned from now on.
-- change: 'new', 'changed', 'restored', 'known' (another worker was faster), 'taken' (an operator's, or another app's). One row.
WITH held AS MATERIALIZED (
    SELECT s.name, s.code_definition IS DISTINCT FROM $19::text AS differs, s.orphaned_at IS NOT NULL AS is_orphan,
           s.origin = 'code' AND (s.app = $18::text OR s.orphaned_at IS NOT NULL) AS is_ours
      FROM /*$schema*/pqrun.schedules s WHERE s.name = $1::text FOR UPDATE
), added AS (
    INSERT INTO /*$schema*/pqrun.schedules AS s
           (name, job_type, payload, queue, priority, max_attempts, timeout_seconds, dedupe_key, backoff_seconds, cron, tz, every_seconds,
            catch_up, overlap, jitter_seconds, payload_version, next_at, app, code_definition, paused_at, origin, declared_at)
    SELECT $1::text, $2::text, $3::text::jsonb, $4::text, $5::smallint, $6::integer, $7::double precision, $8::text, $9::double precision[],
           $10::text, $11::text, $12::double precision, $13::text, $14::text, $15::double precision, $16::integer, $17::timestamptz, $18::text,
           $19::text, CASE WHEN $20::boolean THEN clock_timestamp() END, 'code', clock_timestamp()
     WHERE NOT EXISTS (SELECT FROM held)
    ON CONFLICT (name) DO NOTHING
    RETURNING s.name
), changed AS (
    UPDATE /*$schema*/pqrun.schedules s
       SET job_type = $2::text, payload = $3::text::jsonb, queue = $4::text, priority = $5::smallint, max_attempts = $6::integer,
           timeout_seconds = $7::double precision, dedupe_key = $8::text, backoff_seconds = $9::double precision[], cron = $10::text,
           tz = $11::text, every_seconds = $12::double precision, catch_up = $13::text, overlap = $14::text,
           jitter_seconds = $15::double precision, payload_version = $16::integer, app = $18::text, code_definition = $19::text,
           next_at = CASE WHEN s.orphaned_at IS NULL AND s.cron IS NOT DISTINCT FROM $10::text AND s.tz IS NOT DISTINCT FROM $11::text
                           AND s.every_seconds IS NOT DISTINCT FROM $12::double precision THEN s.next_at ELSE $17::timestamptz END,
           orphaned_at = NULL, declared_at = clock_timestamp(), updated_at = clock_timestamp(), revision = s.revision + 1
      FROM held h WHERE s.name = h.name AND h.is_ours AND h.differs
    RETURNING s.name
), restored AS (
    UPDATE /*$schema*/pqrun.schedules s
       SET orphaned_at = NULL, next_at = NULL, app = $18::text, declared_at = clock_timestamp(), updated_at = clock_timestamp(),
           revision = s.revision + 1
      FROM held h WHERE s.name = h.name AND h.is_ours AND NOT h.differs AND h.is_orphan
    RETURNING s.name
), done AS MATERIALIZED (
    SELECT 'new' AS change FROM added UNION ALL SELECT 'changed' FROM changed UNION ALL SELECT 'restored' FROM restored
)
SELECT coalesce((SELECT change FROM done), (SELECT CASE WHEN is_ours THEN 'known' ELSE 'taken' END FROM held), 'known') AS change,
       (SELECT count(pg_notify(/*$channel*/'pqrun', 'schedules')) FROM done) AS told
