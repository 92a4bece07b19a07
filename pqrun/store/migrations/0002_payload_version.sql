-- The version of each job's payload, and the shapes of payloads that workers have seen (for "pqrun check").
--
-- All that takes time comes first: the lock on jobs, which everybody else waits for, is the last one taken. Adding the column rewrites
-- nothing (its default is kept in the catalog) and no CHECK comes with it, which would read the whole history under that lock.

-- One row per task and version: what the payload looked like to the code that last ran it. shape: see pqrun.job.shape.
CREATE TABLE /*$schema*/pqrun.task_shapes (
    job_type text        NOT NULL,
    version  integer     NOT NULL,
    shape    jsonb       NOT NULL,
    seen_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job_type, version)
);

ALTER FUNCTION /*$schema*/pqrun.enqueue(text, jsonb, text, text, timestamptz, integer, integer, double precision, double precision,
    double precision[]) RENAME TO enqueue_before_0002;

-- As before, with payload_version. Insert a job, or find the active one with the same key. A duplicate changes nothing and locks nothing;
-- an id that is returned has committed, or is this transaction's own. The two statements of the loop see different snapshots (READ
-- COMMITTED), which is what ends it.
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
    backoff_seconds double precision[] DEFAULT NULL,
    payload_version integer            DEFAULT 1
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
    IF enqueue.payload_version < 1 THEN
        RAISE check_violation USING MESSAGE = 'payload_version: expected a whole number from 1; got ' || enqueue.payload_version;
    END IF;
    LOOP
        INSERT INTO /*$schema*/pqrun.jobs_active AS a
            (job_type, payload, queue, dedupe_key, run_after, status, priority, max_attempts, timeout_seconds, backoff_seconds,
             payload_version)
        VALUES (enqueue.job_type, enqueue.payload, enqueue.queue, stored, due,
                CASE WHEN later THEN 'SCHEDULED' ELSE 'READY' END, enqueue.priority, enqueue.max_attempts,
                enqueue.timeout_seconds, enqueue.backoff_seconds, enqueue.payload_version)
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

-- Rights stay as they were: who may call the function may call the new one, and who may use the registry of workers may use the shapes.
DO $pqrun$
DECLARE
    old     regprocedure;
    new     regprocedure;
    granted record;
BEGIN
    SELECT p.oid INTO old FROM pg_catalog.pg_proc p
     WHERE p.pronamespace = /*$literal*/'pqrun'::regnamespace AND p.proname = 'enqueue_before_0002';
    SELECT p.oid INTO new FROM pg_catalog.pg_proc p
     WHERE p.pronamespace = /*$literal*/'pqrun'::regnamespace AND p.proname = 'enqueue';
    IF (SELECT p.proacl IS NOT NULL FROM pg_catalog.pg_proc p WHERE p.oid = old) THEN
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', new);
    END IF;
    FOR granted IN
        SELECT 'FUNCTION ' || new::text AS target, a.* FROM pg_catalog.pg_proc p, aclexplode(p.proacl) a WHERE p.oid = old
        UNION ALL
        SELECT 'TABLE ' || /*$literal*/'pqrun.task_shapes'::regclass::text, a.* FROM pg_catalog.pg_class c, aclexplode(c.relacl) a
         WHERE c.oid = /*$literal*/'pqrun.workers'::regclass
    LOOP
        EXECUTE format('GRANT %s ON %s TO %s %s', granted.privilege_type, granted.target,
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END,
                       CASE WHEN granted.is_grantable THEN 'WITH GRANT OPTION' ELSE '' END);
    END LOOP;
END
$pqrun$;

DROP FUNCTION /*$schema*/pqrun.enqueue_before_0002(text, jsonb, text, text, timestamptz, integer, integer, double precision,
    double precision, double precision[]);

ALTER TABLE /*$schema*/pqrun.jobs ADD COLUMN payload_version integer NOT NULL DEFAULT 1;
