-- The relation "jobs", the registry "workers", and the function "enqueue".
--
-- jobs is partitioned by status into a hot part (jobs_active) and history (jobs_finished): users see one relation, while the indexes
-- and the vacuum of the hot part stay small whatever the history. Settling a job moves its row, so an id lives in one of them only.

CREATE SEQUENCE /*$schema*/pqrun.jobs_id_seq AS bigint;
CREATE SEQUENCE /*$schema*/pqrun.jobs_place_seq AS bigint;   -- order within a lane (queue, priority); renewed on promotion and retry
CREATE SEQUENCE /*$schema*/pqrun.claims_id_seq AS bigint;    -- the fence: every claim takes a fresh number, never reused
CREATE SEQUENCE /*$schema*/pqrun.workers_id_seq AS bigint;

CREATE TABLE /*$schema*/pqrun.jobs (
    id                  bigint           NOT NULL DEFAULT nextval(/*$literal*/'pqrun.jobs_id_seq'),
    place               bigint           NOT NULL DEFAULT nextval(/*$literal*/'pqrun.jobs_place_seq'),
    claim_id            bigint,
    worker              bigint,          -- workers.id of the claimer, for the reaper
    run_after           timestamptz      NOT NULL DEFAULT clock_timestamp(),
    locked_at           timestamptz,
    finished_at         timestamptz,
    cancel_requested_at timestamptz,
    created_at          timestamptz      NOT NULL DEFAULT clock_timestamp(),
    updated_at          timestamptz      NOT NULL DEFAULT clock_timestamp(),
    timeout_seconds     double precision,
    duration_ms         bigint,
    attempts            integer          NOT NULL DEFAULT 0,
    max_attempts        integer          NOT NULL DEFAULT 5,
    lost                integer          NOT NULL DEFAULT 0,   -- workers that died while it ran
    releases            integer          NOT NULL DEFAULT 0,   -- times a started run was given back at a shutdown
    priority            smallint         NOT NULL DEFAULT 0,
    queue               text             NOT NULL DEFAULT 'default',
    job_type            text             NOT NULL,
    status              text             NOT NULL DEFAULT 'READY',
    locked_by           text,
    dedupe_key          text,
    payload             jsonb            NOT NULL DEFAULT '{}',
    last_error          text,
    result              jsonb,
    backoff_seconds     double precision[],

    CONSTRAINT jobs_status CHECK (status IN ('SCHEDULED', 'READY', 'RUNNING', 'DONE', 'FAILED', 'CANCELLED'))
) PARTITION BY LIST (status);

-- Rows here are rewritten twice and then leave: room on the page for the first rewrite, vacuum early and at full speed.
-- Few constraints, each with much in it: as fifteen of their own they took an eighth of the server's time for a claim and its settle,
-- and PostgreSQL reads their text anew for every statement, which is half of what a single insert costs.
CREATE TABLE /*$schema*/pqrun.jobs_active PARTITION OF /*$schema*/pqrun.jobs (
    CONSTRAINT jobs_active_pkey PRIMARY KEY (id),
    CONSTRAINT jobs_active_state CHECK (CASE status
        WHEN 'RUNNING' THEN locked_at IS NOT NULL AND locked_by IS NOT NULL AND attempts <= max_attempts
        ELSE locked_at IS NULL AND locked_by IS NULL AND worker IS NULL AND claim_id IS NULL AND cancel_requested_at IS NULL
             AND attempts < max_attempts END
        AND finished_at IS NULL AND duration_ms IS NULL AND result IS NULL),
    CONSTRAINT jobs_active_names CHECK (length(job_type) BETWEEN 1 AND 200 AND length(queue) BETWEEN 1 AND 200
        AND octet_length(dedupe_key) BETWEEN 1 AND 200),   -- a comparison with NULL refuses nothing
    -- Times: what the driver can read. A row that it cannot would make every claim fail that takes it.
    CONSTRAINT jobs_active_values CHECK (jsonb_typeof(payload) = 'object' AND attempts >= 0 AND max_attempts >= 1
        AND run_after >= '0001-01-02 UTC' AND run_after < '10000-01-01 UTC'
        AND locked_at >= '0001-01-02 UTC' AND locked_at < '10000-01-01 UTC'
        AND timeout_seconds > 0 AND timeout_seconds < 'infinity'
        AND array_position(backoff_seconds, NULL) IS NULL AND 0 <= ALL (backoff_seconds) AND 31536000 >= ALL (backoff_seconds)))
    FOR VALUES IN ('SCHEDULED', 'READY', 'RUNNING')
    WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
          autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 0.1, autovacuum_analyze_threshold = 2000,
          autovacuum_vacuum_cost_delay = 0);

-- A job that is DONE keeps who ran it and when it was claimed.
CREATE TABLE /*$schema*/pqrun.jobs_finished PARTITION OF /*$schema*/pqrun.jobs (
    CONSTRAINT jobs_finished_pkey PRIMARY KEY (id),
    CONSTRAINT jobs_finished_state CHECK (finished_at IS NOT NULL AND CASE status
        WHEN 'DONE' THEN result IS NULL OR jsonb_typeof(result) = 'object'
        ELSE result IS NULL AND locked_at IS NULL AND locked_by IS NULL AND worker IS NULL END),
    CONSTRAINT jobs_finished_values CHECK (jsonb_typeof(payload) = 'object' AND attempts >= 0 AND attempts <= max_attempts
        AND duration_ms >= 0 AND run_after >= '0001-01-02 UTC' AND run_after < '10000-01-01 UTC'
        AND locked_at >= '0001-01-02 UTC' AND locked_at < '10000-01-01 UTC'))
    FOR VALUES IN ('DONE', 'FAILED', 'CANCELLED')
    WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.2);

ALTER SEQUENCE /*$schema*/pqrun.jobs_id_seq OWNED BY /*$schema*/pqrun.jobs.id;
ALTER SEQUENCE /*$schema*/pqrun.jobs_place_seq OWNED BY /*$schema*/pqrun.jobs.place;

CREATE UNIQUE INDEX jobs_active_dedupe ON /*$schema*/pqrun.jobs_active (job_type, dedupe_key) WHERE dedupe_key IS NOT NULL;
-- The claim's index: equality on queue and priority, then a boundary on place.
CREATE INDEX jobs_active_ready ON /*$schema*/pqrun.jobs_active (queue, priority, place) WHERE status = 'READY' AND lost = 0;
-- Jobs that were running when a worker died wait apart: they are claimed one at a time (claim_suspect.sql).
CREATE INDEX jobs_active_suspect ON /*$schema*/pqrun.jobs_active (queue, priority, place) WHERE status = 'READY' AND lost > 0;
CREATE INDEX jobs_active_due ON /*$schema*/pqrun.jobs_active (run_after, id) WHERE status = 'SCHEDULED';
CREATE INDEX jobs_active_running ON /*$schema*/pqrun.jobs_active (worker) WHERE status = 'RUNNING';
CREATE INDEX jobs_finished_at ON /*$schema*/pqrun.jobs_finished (finished_at);

-- One row per worker process. beat is advanced every second; the reaper compares beats, never clocks.
CREATE TABLE /*$schema*/pqrun.workers (
    id         bigint      PRIMARY KEY DEFAULT nextval(/*$literal*/'pqrun.workers_id_seq'),
    worker_id  text        NOT NULL,
    beat       bigint      NOT NULL DEFAULT 0,
    has_lock   boolean     NOT NULL DEFAULT false,   -- holds the session lock (classid of the schema, id): free means dead
    hostname   text,
    pid        integer,
    queues     text[],                               -- served; NULL: all
    job_types  text[]      NOT NULL DEFAULT '{}',    -- served
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    beat_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    dead_at    timestamptz                           -- taken for dead; kept until none of its jobs is RUNNING
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
ALTER SEQUENCE /*$schema*/pqrun.workers_id_seq OWNED BY /*$schema*/pqrun.workers.id;

-- Keys of up to 200 bytes as they are; longer ones as 33 characters and a sha256. The same rule as pqrun.job.dedupe.stored_key.
CREATE FUNCTION /*$schema*/pqrun.stored_key(key text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $pqrun$
    SELECT CASE WHEN octet_length(key) <= 200 THEN key
                ELSE left(key, 33) || ':' || encode(sha256(convert_to(key, 'UTF8')), 'hex') END
$pqrun$;

-- Insert a job, or find the active one with the same key. A duplicate changes nothing and locks nothing; an id that is returned has
-- committed, or is this transaction's own. The two statements of the loop see different snapshots (READ COMMITTED), which is what ends it.
-- enable_seqscan: a session keeps its plans, and one made while the table was empty would scan it whole later.
CREATE FUNCTION /*$schema*/pqrun.enqueue(
    job_type        text,
    payload         jsonb,
    queue           text               DEFAULT 'default',
    dedupe_key      text               DEFAULT NULL,
    run_after       timestamptz        DEFAULT NULL,
    priority        integer            DEFAULT 0,
    max_attempts    integer            DEFAULT 5,
    timeout_seconds double precision   DEFAULT NULL,
    delay_seconds   double precision   DEFAULT NULL,
    backoff_seconds double precision[] DEFAULT NULL
) RETURNS TABLE (id bigint, created boolean) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $pqrun$
#variable_conflict use_column
DECLARE
    stored text := /*$schema*/pqrun.stored_key(enqueue.dedupe_key);
    due    timestamptz := coalesce(enqueue.run_after,
                                   clock_timestamp() + coalesce(enqueue.delay_seconds, 0) * interval '1 second');
    later  boolean := due > clock_timestamp();
    found_id bigint;
BEGIN
    LOOP
        INSERT INTO /*$schema*/pqrun.jobs_active AS a
            (job_type, payload, queue, dedupe_key, run_after, status, priority, max_attempts, timeout_seconds, backoff_seconds)
        VALUES (enqueue.job_type, enqueue.payload, enqueue.queue, stored, due,
                CASE WHEN later THEN 'SCHEDULED' ELSE 'READY' END, enqueue.priority, enqueue.max_attempts,
                enqueue.timeout_seconds, enqueue.backoff_seconds)
        ON CONFLICT (job_type, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
        RETURNING a.id INTO found_id;
        IF FOUND THEN
            PERFORM pg_notify(/*$channel*/'pqrun', CASE WHEN later THEN 'due:' || extract(epoch FROM due)
                                                   ELSE 'ready:' || enqueue.priority || ':' || enqueue.queue END);
            RETURN QUERY SELECT found_id, true;
            RETURN;
        END IF;
        SELECT a.id INTO found_id FROM /*$schema*/pqrun.jobs_active a
         WHERE a.job_type = enqueue.job_type AND a.dedupe_key = stored;
        IF FOUND THEN
            RETURN QUERY SELECT found_id, false;
            RETURN;
        END IF;
    END LOOP;
END
$pqrun$;
