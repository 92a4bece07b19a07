-- Keep what the payloads of these tasks look like to the code that runs them now. $1 job_type text[]  $2 version integer[]
-- $3 shape text[] (JSON). Writes, and locks, only rows that differ: a worker that starts anew with the same code writes nothing.
INSERT INTO /*$schema*/pqrun.task_shapes AS s (job_type, version, shape)
SELECT u.job_type, u.version, u.shape::jsonb
  FROM unnest($1::text[], $2::integer[], $3::text[]) AS u(job_type, version, shape)
 WHERE NOT EXISTS (SELECT FROM /*$schema*/pqrun.task_shapes t
                    WHERE t.job_type = u.job_type AND t.version = u.version AND t.shape = u.shape::jsonb)
 ORDER BY u.job_type, u.version
ON CONFLICT (job_type, version) DO UPDATE SET shape = excluded.shape, seen_at = clock_timestamp()
RETURNING s.job_type, s.version
