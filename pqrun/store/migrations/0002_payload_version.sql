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

-- As before, with payload_version, and with errors that name the argument: a constraint names a group of columns, and its DETAIL holds the
-- row, payload included. Insert a job, or find the active one with the same key. A duplicate changes nothing and locks nothing;
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
    due    timestamptz;
    later  boolean;
    found_id bigint;
    fault  text := CASE   -- the rules of pqrun.job.options
        WHEN enqueue.job_type IS NULL OR length(enqueue.job_type) NOT BETWEEN 1 AND 200
            THEN 'job_type: expected 1 to 200 characters; got ' || coalesce(length(enqueue.job_type)::text, 'null')
        WHEN enqueue.payload IS NULL OR jsonb_typeof(enqueue.payload) <> 'object'
            THEN 'payload: expected a JSON object; got ' || coalesce(jsonb_typeof(enqueue.payload), 'null')
        WHEN enqueue.queue IS NULL OR length(enqueue.queue) NOT BETWEEN 1 AND 200
            THEN 'queue: expected 1 to 200 characters; got ' || coalesce(length(enqueue.queue)::text, 'null')
        WHEN enqueue.dedupe_key = '' THEN 'dedupe_key: expected at least one character, or null for no key; got none'
        WHEN enqueue.priority IS NULL OR enqueue.priority NOT BETWEEN -32768 AND 32767
            THEN 'priority: expected -32768 to 32767; got ' || coalesce(enqueue.priority::text, 'null')
        WHEN enqueue.max_attempts IS NULL OR enqueue.max_attempts < 1
            THEN 'max_attempts: expected a whole number from 1; got ' || coalesce(enqueue.max_attempts::text, 'null')
        WHEN NOT (enqueue.timeout_seconds > 0 AND enqueue.timeout_seconds <= 315360000)   -- NaN is above all numbers
            THEN 'timeout_seconds: expected more than 0, up to 315360000 (3650 days), or null for no limit; got ' || enqueue.timeout_seconds
        WHEN enqueue.run_after IS NOT NULL AND enqueue.delay_seconds IS NOT NULL
            THEN 'run_after, delay_seconds: expected one of them; got both'
        WHEN NOT (enqueue.run_after >= '0001-01-02 UTC' AND enqueue.run_after < '10000-01-01 UTC')
            THEN 'run_after: expected an instant in the years 1 to 9999; got another'
        WHEN NOT (enqueue.delay_seconds >= 0 AND enqueue.delay_seconds <= 31557600000)
            THEN 'delay_seconds: expected 0 to 31557600000 (365250 days); got ' || enqueue.delay_seconds
        WHEN array_position(enqueue.backoff_seconds, NULL) IS NOT NULL
             OR NOT (0 <= ALL (enqueue.backoff_seconds) AND 31536000 >= ALL (enqueue.backoff_seconds))
            THEN 'backoff_seconds: expected delays of 0 to 31536000 (a year); got ' || enqueue.backoff_seconds::text
        WHEN enqueue.payload_version IS NULL OR enqueue.payload_version < 1
            THEN 'payload_version: expected a whole number from 1; got ' || coalesce(enqueue.payload_version::text, 'null')
    END;
BEGIN
    IF fault IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'pqrun.enqueue: ' || fault;
    END IF;
    due := coalesce(enqueue.run_after, clock_timestamp() + coalesce(enqueue.delay_seconds, 0) * interval '1 second');
    later := due > clock_timestamp();
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
