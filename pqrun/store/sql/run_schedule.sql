-- One firing now, whatever the plan and the state; the plan stays. $1 name text
-- One row if there is such a schedule: the job, or the active one that stands in its way (overlap 'skip'), or neither (its dedupe key is
-- taken, by the active job in holder if that has committed).
WITH picked AS MATERIALIZED (
    SELECT s.* FROM /*$schema*/pqrun.schedules s WHERE s.name = $1::text FOR UPDATE
), looked AS MATERIALIZED (
    SELECT p.*, (SELECT a.id FROM /*$schema*/pqrun.jobs_active a WHERE a.id = p.last_job_id AND p.overlap = 'skip') AS busy_id FROM picked p
), inserted AS (
    INSERT INTO /*$schema*/pqrun.jobs_active AS a
           (job_type, payload, queue, priority, max_attempts, timeout_seconds, dedupe_key, backoff_seconds, payload_version, scheduled_for)
    SELECT l.job_type, l.payload, l.queue, l.priority, l.max_attempts, l.timeout_seconds, l.dedupe_key, l.backoff_seconds,
           l.payload_version, clock_timestamp()
      FROM looked l WHERE l.busy_id IS NULL
    ON CONFLICT (job_type, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING a.id, a.queue, a.priority, a.scheduled_for
), noted AS (
    UPDATE /*$schema*/pqrun.schedules s SET last_at = i.scheduled_for, last_job_id = i.id FROM inserted i WHERE s.name = $1::text
    RETURNING s.name
)
SELECT (SELECT id FROM inserted) AS id, l.busy_id, (
           SELECT a.id FROM /*$schema*/pqrun.jobs_active a WHERE a.job_type = l.job_type AND a.dedupe_key = l.dedupe_key) AS holder_id,
       (SELECT count(pg_notify(/*$channel*/'pqrun', 'ready:' || i.priority || ':' || i.queue)) FROM inserted i) AS told
  FROM looked l
