-- What belongs to a job beside its row: the clock, who runs it, and the schedules that may have made it. $1 job id bigint
-- $2 job_type text: of a job that a schedule made; NULL for others  $3 limit integer: schedules
-- One row. worker is NULL unless it is RUNNING; beat_seconds is NULL where its worker is not registered. is_last: the first schedule named
-- made it for certain. By the primary keys: only a RUNNING job has a worker, and a condition on the state would lead through the index of
-- the running ones, with its dead entries. Schedules are few, and read whole.
SELECT statement_timestamp() AS now, a.worker, extract(epoch FROM clock_timestamp() - w.beat_at)::double precision AS beat_seconds,
       w.dead_at IS NOT NULL AS is_dead, s.names, coalesce(s.is_last, false) AS is_last
  FROM (SELECT) one
  LEFT JOIN /*$schema*/pqrun.jobs_active a ON a.id = $1::bigint
  LEFT JOIN /*$schema*/pqrun.workers w ON w.id = a.worker
  LEFT JOIN LATERAL (
    SELECT array_agg(c.name ORDER BY c.is_last DESC, c.name) AS names, bool_or(c.is_last) AS is_last
      FROM (SELECT n.name, n.last_job_id IS NOT DISTINCT FROM $1::bigint AS is_last FROM /*$schema*/pqrun.schedules n
             WHERE n.job_type = $2::text ORDER BY 2 DESC, 1 LIMIT $3::integer) c) s ON true
