-- A piece of a walk over jobs: the ids of those that match, then one row with the last that was looked at, how many were, how many of
-- those match, and when the newest of them was made.
-- $1 walk text: 'active' or 'finished' (by id), 'finished_at' (the finished ones by that time), 'ids' (those of $6 ); and downwards 'newest',
-- 'newest active' and 'newest finished' (by id), 'latest' (the finished ones by that time)
-- $2 after id bigint  $3 last id bigint  $4 from timestamptz: with $2 the last one looked at, for 'finished_at' and 'latest'
-- $5 rows integer, looked at
-- $6 ids bigint[], for 'ids'
-- The filter, NULL for any: $7 status text[]  $8 job_type text[]  $9 queue text[]  $10 priority smallint[]  $11 dedupe_key text[]
-- $12 error text: a part of last_error  $13 payload text (JSON): a part of it  $14 created from timestamptz  $15 created before timestamptz
-- $16 finished from timestamptz  $17 finished before timestamptz (never NULL for 'finished_at')  $18 run_after from timestamptz
-- $19 run_after before timestamptz  $20 job_type text[], patterns of LIKE; with $8 one of the two is enough  $21 locked_by text[]
-- $22 attempts integer at least  $23 attempts integer at most  $24 ids returned integer, the first of the walk; NULL: all that match
--
-- One statement for all walks: of the branches whose walk it is not, PostgreSQL starts none. A walk by id reads the table in bounded
-- pieces, whatever the filter; those by finished_at and the one by ids read what their indexes lead to. Reads without locks, in a
-- statement of its own for each piece: one snapshot for all would hold back vacuum. What costs most, payloads, is compared last.
WITH looked AS MATERIALIZED (
    SELECT s.id, s.finished_at, s.created_at, row_number() OVER () AS number,
           ($7::text[] IS NULL OR s.status = ANY ($7::text[]))
           AND (($8::text[] IS NULL AND $20::text[] IS NULL) OR s.job_type = ANY ($8::text[]) OR s.job_type LIKE ANY ($20::text[]))
           AND ($9::text[] IS NULL OR s.queue = ANY ($9::text[]))
           AND ($10::smallint[] IS NULL OR s.priority = ANY ($10::smallint[]))
           AND ($11::text[] IS NULL OR s.dedupe_key = ANY ($11::text[]))
           AND ($21::text[] IS NULL OR s.locked_by = ANY ($21::text[]))
           AND ($22::integer IS NULL OR s.attempts >= $22::integer)
           AND ($23::integer IS NULL OR s.attempts <= $23::integer)
           AND ($14::timestamptz IS NULL OR s.created_at >= $14::timestamptz)
           AND ($15::timestamptz IS NULL OR s.created_at < $15::timestamptz)
           AND ($16::timestamptz IS NULL OR s.finished_at >= $16::timestamptz)
           AND ($17::timestamptz IS NULL OR s.finished_at < $17::timestamptz)
           AND ($18::timestamptz IS NULL OR s.run_after >= $18::timestamptz)
           AND ($19::timestamptz IS NULL OR s.run_after < $19::timestamptz)
           AND ($12::text IS NULL OR strpos(lower(s.last_error), lower($12::text)) > 0)
           AND ($13::text IS NULL OR s.payload @> $13::text::jsonb) AS is_match
      FROM (
        (SELECT a.id, a.finished_at, a.status, a.job_type, a.queue, a.priority, a.dedupe_key, a.locked_by, a.attempts, a.created_at,
                a.run_after, a.last_error, a.payload
           FROM /*$schema*/pqrun.jobs_active a
          WHERE $1::text = 'active' AND a.id > $2::bigint AND a.id <= $3::bigint ORDER BY a.id LIMIT $5::integer)
        UNION ALL
        (SELECT f.id, f.finished_at, f.status, f.job_type, f.queue, f.priority, f.dedupe_key, f.locked_by, f.attempts, f.created_at,
                f.run_after, f.last_error, f.payload
           FROM /*$schema*/pqrun.jobs_finished f
          WHERE $1::text = 'finished' AND f.id > $2::bigint AND f.id <= $3::bigint ORDER BY f.id LIMIT $5::integer)
        UNION ALL
        (SELECT f.id, f.finished_at, f.status, f.job_type, f.queue, f.priority, f.dedupe_key, f.locked_by, f.attempts, f.created_at,
                f.run_after, f.last_error, f.payload
           FROM /*$schema*/pqrun.jobs_finished f
          WHERE $1::text = 'finished_at' AND f.finished_at >= $4::timestamptz AND f.finished_at < $17::timestamptz
            AND (f.finished_at, f.id) > ($4::timestamptz, $2::bigint) ORDER BY f.finished_at, f.id LIMIT $5::integer)
        UNION ALL
        (SELECT j.id, j.finished_at, j.status, j.job_type, j.queue, j.priority, j.dedupe_key, j.locked_by, j.attempts, j.created_at,
                j.run_after, j.last_error, j.payload
           FROM /*$schema*/pqrun.jobs j
          WHERE $1::text = 'newest' AND j.id < $2::bigint ORDER BY j.id DESC LIMIT $5::integer)
        UNION ALL
        (SELECT a.id, a.finished_at, a.status, a.job_type, a.queue, a.priority, a.dedupe_key, a.locked_by, a.attempts, a.created_at,
                a.run_after, a.last_error, a.payload
           FROM /*$schema*/pqrun.jobs_active a
          WHERE $1::text = 'newest active' AND a.id < $2::bigint ORDER BY a.id DESC LIMIT $5::integer)
        UNION ALL
        (SELECT f.id, f.finished_at, f.status, f.job_type, f.queue, f.priority, f.dedupe_key, f.locked_by, f.attempts, f.created_at,
                f.run_after, f.last_error, f.payload
           FROM /*$schema*/pqrun.jobs_finished f
          WHERE $1::text = 'newest finished' AND f.id < $2::bigint ORDER BY f.id DESC LIMIT $5::integer)
        UNION ALL
        (SELECT f.id, f.finished_at, f.status, f.job_type, f.queue, f.priority, f.dedupe_key, f.locked_by, f.attempts, f.created_at,
                f.run_after, f.last_error, f.payload
           FROM /*$schema*/pqrun.jobs_finished f
          WHERE $1::text = 'latest' AND f.finished_at >= coalesce($16::timestamptz, '-infinity') AND f.finished_at < $17::timestamptz
            AND f.finished_at <= $4::timestamptz AND (f.finished_at, f.id) < ($4::timestamptz, $2::bigint)
          ORDER BY f.finished_at DESC, f.id DESC LIMIT $5::integer)
        UNION ALL
        (SELECT j.id, j.finished_at, j.status, j.job_type, j.queue, j.priority, j.dedupe_key, j.locked_by, j.attempts, j.created_at,
                j.run_after, j.last_error, j.payload
           FROM /*$schema*/pqrun.jobs j
          WHERE $1::text = 'ids' AND j.id = ANY ($6::bigint[]))) s
)
(SELECT id, finished_at, NULL::bigint AS looked, NULL::bigint AS matched, NULL::timestamptz AS newest
   FROM looked WHERE is_match ORDER BY number LIMIT $24::integer)
UNION ALL
SELECT (SELECT id FROM looked ORDER BY number DESC LIMIT 1), (SELECT finished_at FROM looked ORDER BY number DESC LIMIT 1),
       (SELECT count(*) FROM looked), (SELECT count(*) FROM looked WHERE is_match), (SELECT max(created_at) FROM looked)
