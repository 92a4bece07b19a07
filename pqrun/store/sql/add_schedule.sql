-- An operator's schedule; no row where the name is taken. $1 name text  $2 job_type text  $3 payload text (JSON)  $4 queue text
-- $5 priority smallint  $6 max_attempts integer  $7 timeout_seconds float8  $8 dedupe_key text  $9 backoff_seconds float8[]
-- $10 cron text  $11 tz text  $12 every_seconds float8  $13 catch_up text  $14 overlap text  $15 jitter_seconds float8
-- $16 payload_version integer  $17 next_at timestamptz  $18 paused boolean
WITH added AS (
    INSERT INTO /*$schema*/pqrun.schedules AS s
           (name, job_type, payload, queue, priority, max_attempts, timeout_seconds, dedupe_key, backoff_seconds, cron, tz, every_seconds,
            catch_up, overlap, jitter_seconds, payload_version, next_at, paused_at)
    VALUES ($1::text, $2::text, $3::text::jsonb, $4::text, $5::smallint, $6::integer, $7::double precision, $8::text,
            $9::double precision[], $10::text, $11::text, $12::double precision, $13::text, $14::text, $15::double precision,
            $16::integer, $17::timestamptz, CASE WHEN $18::boolean THEN clock_timestamp() END)
    ON CONFLICT (name) DO NOTHING
    RETURNING s.name
)
SELECT name, (SELECT pg_notify(/*$channel*/'pqrun', 'schedules') IS NOT NULL) AS told FROM added
