-- The active jobs that hold these keys. $1 job_type text[]  $2 dedupe_key text[] (as stored). Counts on jobs_active_dedupe.
SELECT u.position::integer AS position, a.id
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u(job_type, dedupe_key, position)
 CROSS JOIN LATERAL (
    SELECT a.id FROM /*$schema*/pqrun.jobs_active a WHERE a.job_type = u.job_type AND a.dedupe_key = u.dedupe_key LIMIT 1) a
