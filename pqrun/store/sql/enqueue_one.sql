-- What enqueue.sql does for many, for one job: no row where an active job has its key. Arrays of one took a third more time.
-- $1 job_type text  $2 payload text (JSON)  $3 queue text  $4 priority smallint  $5 max_attempts integer  $6 timeout_seconds float8
-- $7 dedupe_key text (as stored)  $8 run_after text (ISO)  $9 delay_seconds float8  $10 backoff_seconds text (array literal)
-- $11 payload_version integer  $12 headers text (JSON)  $13 notify boolean. Counts on jobs_active_dedupe.
WITH inserted AS (
    INSERT INTO /*$schema*/pqrun.jobs_active AS a
           (job_type, payload, queue, priority, max_attempts, timeout_seconds, dedupe_key, run_after, status, backoff_seconds,
            payload_version, headers)
    SELECT $1::text, $2::text::jsonb, $3::text, $4::smallint, $5::integer, $6::double precision, $7::text, d.due,
           CASE WHEN d.due > clock_timestamp() THEN 'SCHEDULED' ELSE 'READY' END, $10::text::double precision[],
           $11::integer, $12::text::jsonb
      FROM (SELECT coalesce($8::text::timestamptz, clock_timestamp() + coalesce($9::double precision, 0) * interval '1 second') AS due) d
    ON CONFLICT (job_type, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING a.id, a.status, a.run_after
)
SELECT 1 AS position, id,
       CASE WHEN $13::boolean THEN pg_notify(/*$channel*/'pqrun', CASE status WHEN 'READY' THEN 'ready:' || $4::smallint || ':' || $3::text
                                                                  ELSE 'due:' || extract(epoch FROM run_after) END)::text END AS told
  FROM inserted
