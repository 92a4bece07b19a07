-- Schedules: what is inserted as a job again and again, and when. Expressions are evaluated in Python (pqrun.job.schedule); the table
-- holds the planned time of the next firing, and whoever moves it on inserts the jobs in the same statement (fire_schedules.sql).
--
-- As in 0002, the lock on jobs is the last one taken, and the column rewrites nothing.

-- Which schedules the code of a worker declares: one that no living worker declares can be orphaned.
ALTER TABLE /*$schema*/pqrun.workers ADD COLUMN schedules text[] NOT NULL DEFAULT '{}';

CREATE TABLE /*$schema*/pqrun.schedules (
    name            text             PRIMARY KEY,
    job_type        text             NOT NULL,
    payload         jsonb            NOT NULL DEFAULT '{}',
    payload_version integer          NOT NULL DEFAULT 1,   -- of the task that the payload was written for, as in jobs
    queue           text             NOT NULL DEFAULT 'default',
    priority        smallint         NOT NULL DEFAULT 0,
    max_attempts    integer          NOT NULL DEFAULT 5,
    timeout_seconds double precision,
    dedupe_key      text,            -- finished
    backoff_seconds double precision[],
    cron            text,
    tz              text,
    every_seconds   double precision,
    catch_up        text             NOT NULL DEFAULT 'one',
    overlap         text             NOT NULL DEFAULT 'allow',
    jitter_seconds  double precision NOT NULL DEFAULT 0,
    next_at         timestamptz,     -- planned time of the next firing; NULL: the next worker that looks plans it, from then on
    last_at         timestamptz,     -- planned time of the last firing that made a job
    last_job_id     bigint,
    paused_at       timestamptz,
    orphaned_at     timestamptz,     -- since when no code declares it; it does not fire
    origin          text             NOT NULL DEFAULT 'operator',
    app             text,            -- whose code declares it
    code_definition text,            -- the last definition seen in code; what differs from it is applied
    declared_at     timestamptz,     -- when a worker last declared it
    revision        bigint           NOT NULL DEFAULT 1,   -- grows with each change of definition or state, not with firings
    created_at      timestamptz      NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz      NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT schedules_names CHECK (length(name) BETWEEN 1 AND 200 AND length(job_type) BETWEEN 1 AND 200
        AND length(queue) BETWEEN 1 AND 200 AND octet_length(dedupe_key) BETWEEN 1 AND 200),
    CONSTRAINT schedules_rule CHECK (CASE WHEN cron IS NULL THEN every_seconds IS NOT NULL AND tz IS NULL
                                          ELSE every_seconds IS NULL AND tz IS NOT NULL END),
    CONSTRAINT schedules_choices CHECK (catch_up IN ('skip', 'one', 'all') AND overlap IN ('allow', 'skip')
        AND origin IN ('code', 'operator')),
    CONSTRAINT schedules_values CHECK (jsonb_typeof(payload) = 'object' AND payload_version >= 1 AND max_attempts >= 1
        AND timeout_seconds > 0 AND timeout_seconds < 'infinity'
        AND every_seconds >= 1 AND every_seconds <= 31622400 AND jitter_seconds >= 0 AND jitter_seconds <= 86400
        AND next_at >= '0001-01-02 UTC' AND next_at < '10000-01-01 UTC'
        AND array_position(backoff_seconds, NULL) IS NULL AND 0 <= ALL (backoff_seconds) AND 31536000 >= ALL (backoff_seconds))
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

CREATE INDEX schedules_due ON /*$schema*/pqrun.schedules (next_at) WHERE paused_at IS NULL AND orphaned_at IS NULL;
CREATE INDEX schedules_declared ON /*$schema*/pqrun.schedules (app) WHERE origin = 'code' AND orphaned_at IS NULL;

-- Rights: who may use the registry of workers may use the schedules.
DO $pqrun$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT a.* FROM pg_catalog.pg_class c, aclexplode(c.relacl) a WHERE c.oid = /*$literal*/'pqrun.workers'::regclass
    LOOP
        EXECUTE format('GRANT %s ON TABLE %s TO %s %s', granted.privilege_type, /*$literal*/'pqrun.schedules'::regclass,
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END,
                       CASE WHEN granted.is_grantable THEN 'WITH GRANT OPTION' ELSE '' END);
    END LOOP;
END
$pqrun$;

ALTER TABLE /*$schema*/pqrun.jobs ADD COLUMN scheduled_for timestamptz;   -- the planned time of the firing that made the job
