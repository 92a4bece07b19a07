-- The registry as pqrun doctor judges it: who beats, since when, and what each serves. Times are the database's.
SELECT w.id, w.worker_id, w.hostname, w.pid, w.queues, w.job_types, w.has_lock, w.dead_at IS NOT NULL AS is_dead,
       extract(epoch FROM clock_timestamp() - w.beat_at)::double precision AS beat_seconds,
       extract(epoch FROM clock_timestamp() - w.started_at)::double precision AS started_seconds,
       w.started_at < (SELECT max(m.applied_at) FROM /*$schema*/pqrun.migrations m) AS is_older_than_schema, w.version
  FROM /*$schema*/pqrun.workers w ORDER BY w.started_at
