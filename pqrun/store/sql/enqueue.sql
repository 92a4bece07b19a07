-- Insert jobs, one row per array element; what is not returned met an active job of the same key (find_active.sql finds it).
-- $1 job_type text[]  $2 payload text[] (JSON)  $3 queue text[]  $4 priority smallint[]  $5 max_attempts integer[]
-- $6 timeout_seconds float8[]  $7 dedupe_key text[] (as stored)  $8 run_after text[] (ISO)  $9 delay_seconds float8[]
-- $10 backoff_seconds text[] (array literals)  $11 payload_version integer[]  $12 headers text[] (JSON)
-- $13 notify boolean
-- Times are text: a connection of the users' may have codecs for them.
-- Ids and places are taken in the order given; rows go in key order, so that two batches meet their conflicts in the same order and
-- cannot deadlock. Counts on jobs_active_dedupe.
WITH input AS MATERIALIZED (
    SELECT u.*, coalesce(u.run_after, clock_timestamp() + coalesce(u.delay_seconds, 0) * interval '1 second') AS due,
           nextval(/*$literal*/'pqrun.jobs_id_seq') AS id, nextval(/*$literal*/'pqrun.jobs_place_seq') AS place
      FROM unnest($1::text[], $2::text[], $3::text[], $4::smallint[], $5::integer[], $6::double precision[], $7::text[],
                  $8::text[]::timestamptz[], $9::double precision[], $10::text[], $11::integer[], $12::text[]) WITH ORDINALITY
           AS u(job_type, payload, queue, priority, max_attempts, timeout_seconds, dedupe_key, run_after, delay_seconds,
                backoff_seconds, payload_version, headers, position)
), inserted AS (
    INSERT INTO /*$schema*/pqrun.jobs_active AS a
           (id, place, job_type, payload, queue, priority, max_attempts, timeout_seconds, dedupe_key, run_after, status, backoff_seconds,
            payload_version, headers)
    SELECT i.id, i.place, i.job_type, i.payload::jsonb, i.queue, i.priority, i.max_attempts, i.timeout_seconds, i.dedupe_key, i.due,
           CASE WHEN i.due > clock_timestamp() THEN 'SCHEDULED' ELSE 'READY' END, i.backoff_seconds::double precision[],
           i.payload_version, i.headers::jsonb
      FROM input i
     ORDER BY i.job_type, i.dedupe_key, i.position
    ON CONFLICT (job_type, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING a.id, a.status, a.queue, a.priority, a.run_after
), announced AS MATERIALIZED (
    SELECT count(pg_notify(/*$channel*/'pqrun', m.message)) AS messages
      FROM (SELECT 'ready:' || priority || ':' || queue AS message FROM inserted WHERE status = 'READY' GROUP BY queue, priority
            UNION ALL
            SELECT 'due:' || extract(epoch FROM min(run_after)) FROM inserted WHERE status = 'SCHEDULED' HAVING count(*) > 0) m
     WHERE $13::boolean
)
SELECT i.position::integer AS position, n.id
  FROM inserted n JOIN input i ON i.id = n.id CROSS JOIN announced
