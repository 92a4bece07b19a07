-- What stands out of a task among the jobs that ended last: those whose last attempt ran longest, and those that failed last; then one row
-- without id: how many were looked at, and since when. $1 job_type text  $2 rows integer: ended jobs of all tasks that are looked at, as no
-- index has them by task  $3 slowest integer  $4 failed integer. Counts on jobs_finished_at.
WITH looked AS MATERIALIZED (
    SELECT f.id, f.job_type, f.status, f.duration_ms, f.finished_at FROM /*$schema*/pqrun.jobs_finished f
     ORDER BY f.finished_at DESC LIMIT $2::integer
)
(SELECT 'slowest' AS kind, l.id, NULL::bigint AS looked, NULL::timestamptz AS since FROM looked l
  WHERE l.job_type = $1::text AND l.duration_ms IS NOT NULL ORDER BY l.duration_ms DESC, l.id DESC LIMIT $3::integer)
UNION ALL
(SELECT 'failed', l.id, NULL, NULL FROM looked l
  WHERE l.job_type = $1::text AND l.status = 'FAILED' ORDER BY l.finished_at DESC, l.id DESC LIMIT $4::integer)
UNION ALL
SELECT 'all', NULL, count(*), min(l.finished_at) FROM looked l
