-- The kept attempts of one job, oldest first. $1 job id bigint. By the primary key.
SELECT id, job_id, job_type, queue, number, kind, started_at, ended_at, duration_ms, worker, status_after, exception_type, message,
       traceback, frame, fingerprint
  FROM /*$schema*/pqrun.attempts WHERE job_id = $1::bigint ORDER BY id
