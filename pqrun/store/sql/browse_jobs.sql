-- The newest jobs that match, for a page of them; with how many were looked at for it, how many of those match, and the clock.
-- $1 part text: 'active', 'finished' or 'all'  $2 before id bigint: only older ones  $3 looked integer: so many newest ones at most
-- $4 shown integer  $5 ids bigint[]: only these, or NULL
-- The filter, NULL for any: $6 status text[]  $7 job_type text[]  $8 queue text[]  $9 priority smallint[]  $10 dedupe_key text[]
-- $11 error text: a part of last_error  $12 payload text (JSON): a part of it  $13 created from timestamptz
-- $14 created before timestamptz  $15 finished from timestamptz  $16 finished before timestamptz  $17 run_after from timestamptz
-- $18 run_after before timestamptz  $19 job_type text[], patterns of LIKE; with $7 one of the two is enough  $20 locked_by text[]
-- $21 attempts integer at least  $22 attempts integer at most
--
-- What a page costs is bounded by $3, whatever the filter and the size of the table: a filter that matches little ends early, and the page
-- says how far it has come. At least one row: without jobs its id is NULL. Counts on jobs_active_pkey and jobs_finished_pkey, read
-- backward. Of the error its end is enough: there stands the line that names it.
WITH looked AS MATERIALIZED (
    SELECT s.id,
           ($6::text[] IS NULL OR s.status = ANY ($6::text[]))
           AND (($7::text[] IS NULL AND $19::text[] IS NULL) OR s.job_type = ANY ($7::text[]) OR s.job_type LIKE ANY ($19::text[]))
           AND ($8::text[] IS NULL OR s.queue = ANY ($8::text[]))
           AND ($9::smallint[] IS NULL OR s.priority = ANY ($9::smallint[]))
           AND ($10::text[] IS NULL OR s.dedupe_key = ANY ($10::text[]))
           AND ($20::text[] IS NULL OR s.locked_by = ANY ($20::text[]))
           AND ($21::integer IS NULL OR s.attempts >= $21::integer)
           AND ($22::integer IS NULL OR s.attempts <= $22::integer)
           AND ($13::timestamptz IS NULL OR s.created_at >= $13::timestamptz)
           AND ($14::timestamptz IS NULL OR s.created_at < $14::timestamptz)
           AND ($15::timestamptz IS NULL OR s.finished_at >= $15::timestamptz)
           AND ($16::timestamptz IS NULL OR s.finished_at < $16::timestamptz)
           AND ($17::timestamptz IS NULL OR s.run_after >= $17::timestamptz)
           AND ($18::timestamptz IS NULL OR s.run_after < $18::timestamptz)
           AND ($11::text IS NULL OR strpos(lower(s.last_error), lower($11::text)) > 0)
           AND ($12::text IS NULL OR s.payload @> $12::text::jsonb) AS is_match
      FROM (
        (SELECT a.* FROM /*$schema*/pqrun.jobs_active a
          WHERE $1::text <> 'finished' AND $5::bigint[] IS NULL AND a.id < $2::bigint ORDER BY a.id DESC LIMIT $3::integer)
        UNION ALL
        (SELECT f.* FROM /*$schema*/pqrun.jobs_finished f
          WHERE $1::text <> 'active' AND $5::bigint[] IS NULL AND f.id < $2::bigint ORDER BY f.id DESC LIMIT $3::integer)
        UNION ALL
        (SELECT j.* FROM /*$schema*/pqrun.jobs j WHERE $5::bigint[] IS NOT NULL AND j.id = ANY ($5::bigint[]) AND j.id < $2::bigint)
        ORDER BY id DESC LIMIT $3::integer) s
), shown AS MATERIALIZED (
    SELECT id FROM looked WHERE is_match ORDER BY id DESC LIMIT $4::integer
)
SELECT t.looked, t.matched, t.last_id, statement_timestamp() AS now,
       j.id, j.queue, j.job_type, j.priority, j.attempts, j.max_attempts, j.run_after, j.locked_at, j.dedupe_key,
       right(j.last_error, 4000) AS last_error, j.created_at, j.snoozes, j.status, j.locked_by, j.finished_at, j.duration_ms,
       j.cancel_requested_at
  FROM (SELECT count(*) AS looked, count(*) FILTER (WHERE is_match) AS matched, min(id) AS last_id FROM looked) t
  LEFT JOIN shown s ON true
  LEFT JOIN /*$schema*/pqrun.jobs j ON j.id = s.id
 ORDER BY j.id DESC NULLS LAST
