-- Insert the jobs of due schedules and move the schedules on, all or nothing: a tick and its jobs are one statement.
-- $1 name text[]  $2 next_at timestamptz[] as it was looked at (NULL: not planned)  $3 revision bigint[] the same
-- $4 the next planned time timestamptz[]  $5 firings: schedule text[]  $6 firings: planned time timestamptz[]
-- $7 firings: due time of the job timestamptz[]
--
-- The fence is next_at: of any number of workers that look at one tick, one moves it, and the others' input matches nothing any more. A
-- row that is locked is left to who has it. The revision keeps a rule that was edited meanwhile from being planned by its old text.
-- overlap 'skip': nothing while the job of the last firing is active, and of several firings the latest only. A dedupe key that is
-- taken makes no job, and no error. One row per schedule that was moved on.
WITH input AS MATERIALIZED (
    SELECT u.* FROM unnest($1::text[], $2::timestamptz[], $3::bigint[], $4::timestamptz[]) AS u(name, expected, revision, following)
), picked AS MATERIALIZED (
    SELECT s.*, u.following
      FROM /*$schema*/pqrun.schedules s JOIN input u ON s.name = u.name
     WHERE s.next_at IS NOT DISTINCT FROM u.expected AND s.revision = u.revision AND s.paused_at IS NULL AND s.orphaned_at IS NULL
       AND (u.expected IS NULL OR u.expected <= statement_timestamp())
       FOR UPDATE OF s SKIP LOCKED
), fired AS MATERIALIZED (
    SELECT p.*, f.planned, f.due, p.overlap = 'skip' AND EXISTS (
               SELECT FROM /*$schema*/pqrun.jobs_active a WHERE a.id = p.last_job_id) AS is_busy,
           row_number() OVER (PARTITION BY p.name ORDER BY f.planned DESC) AS rank
      FROM picked p JOIN unnest($5::text[], $6::timestamptz[], $7::timestamptz[]) AS f(name, planned, due) ON f.name = p.name
), numbered AS MATERIALIZED (
    SELECT w.*, nextval(/*$literal*/'pqrun.jobs_id_seq') AS id
      FROM (SELECT * FROM fired WHERE NOT is_busy AND (overlap = 'allow' OR rank = 1) ORDER BY planned, name) w
), inserted AS (
    INSERT INTO /*$schema*/pqrun.jobs_active AS a
           (id, job_type, payload, queue, priority, max_attempts, timeout_seconds, dedupe_key, run_after, status, backoff_seconds,
            payload_version, scheduled_for)
    SELECT n.id, n.job_type, n.payload, n.queue, n.priority, n.max_attempts, n.timeout_seconds, n.dedupe_key, n.due,
           CASE WHEN n.due > clock_timestamp() THEN 'SCHEDULED' ELSE 'READY' END, n.backoff_seconds, n.payload_version, n.planned
      FROM numbered n
     ORDER BY n.job_type, n.dedupe_key, n.id
    ON CONFLICT (job_type, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING a.id, a.status, a.queue, a.priority, a.run_after
), made AS MATERIALIZED (
    SELECT n.name, n.planned, i.* FROM inserted i JOIN numbered n ON n.id = i.id
), moved AS (
    UPDATE /*$schema*/pqrun.schedules s
       SET next_at = p.following, last_at = coalesce(m.last_at, s.last_at), last_job_id = coalesce(m.last_job_id, s.last_job_id)
      FROM picked p LEFT JOIN (SELECT name, max(planned) AS last_at, max(id) AS last_job_id FROM made GROUP BY name) m ON m.name = p.name
     WHERE s.name = p.name
    RETURNING s.name
), announced AS MATERIALIZED (
    SELECT count(pg_notify(/*$channel*/'pqrun', m.message)) AS messages
      FROM (SELECT 'ready:' || priority || ':' || queue AS message FROM inserted WHERE status = 'READY' GROUP BY queue, priority
            UNION ALL
            SELECT 'due:' || extract(epoch FROM min(run_after)) FROM inserted WHERE status = 'SCHEDULED' HAVING count(*) > 0) m
)
SELECT v.name, coalesce((SELECT bool_or(f.is_busy) FROM fired f WHERE f.name = v.name), false) AS is_busy,
       (SELECT count(*) FROM made m WHERE m.name = v.name)::integer AS jobs,
       (SELECT max(m.id) FROM made m WHERE m.name = v.name) AS last_job_id
  FROM moved v CROSS JOIN announced
