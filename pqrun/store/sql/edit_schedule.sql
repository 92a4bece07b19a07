-- Change a schedule that is still as it was read. $1 name text  $2 job_type text  $3 payload text (JSON)  $4 queue text
-- $5 priority smallint  $6 max_attempts integer  $7 timeout_seconds float8  $8 dedupe_key text  $9 backoff_seconds float8[]
-- $10 cron text  $11 tz text  $12 every_seconds float8  $13 catch_up text  $14 overlap text  $15 jitter_seconds float8
-- $16 payload_version integer  $17 next_at timestamptz or NULL: as planned  $18 revision bigint
WITH edited AS (
    UPDATE /*$schema*/pqrun.schedules s
       SET job_type = $2::text, payload = $3::text::jsonb, queue = $4::text, priority = $5::smallint, max_attempts = $6::integer,
           timeout_seconds = $7::double precision, dedupe_key = $8::text, backoff_seconds = $9::double precision[], cron = $10::text,
           tz = $11::text, every_seconds = $12::double precision, catch_up = $13::text, overlap = $14::text,
           jitter_seconds = $15::double precision, payload_version = $16::integer, next_at = coalesce($17::timestamptz, s.next_at),
           updated_at = clock_timestamp(), revision = s.revision + 1
     WHERE s.name = $1::text AND s.revision = $18::bigint
    RETURNING s.name
)
SELECT name, (SELECT pg_notify(/*$channel*/'pqrun', 'schedules') IS NOT NULL) AS told FROM edited
