-- What workers count per minute, whose turn it is to do something for all workers, and headers that travel with a job.
--
-- As in 0002, the lock on jobs is the last one taken, and the column rewrites nothing.

-- One row per minute, worker, queue and task in which something happened: written once by that worker, never changed, read as sums. Buckets
-- of the two arrays: pqrun.job.statistics; each ends with its last number that is not 0.
CREATE TABLE /*$schema*/pqrun.statistics (
    minute      timestamptz NOT NULL,
    worker      bigint      NOT NULL,   -- workers.id, which outlives the row there
    queue       text        NOT NULL,
    job_type    text        NOT NULL,
    started     integer     NOT NULL,
    arrived     integer     NOT NULL,   -- of those started, the first starts of their jobs
    done        integer     NOT NULL,
    failed      integer     NOT NULL,
    retrying    integer     NOT NULL,
    snoozed     integer     NOT NULL,
    cancelled   integer     NOT NULL,
    lost        integer     NOT NULL,   -- taken back from dead workers, by this one
    released    integer     NOT NULL,
    run_ms      bigint      NOT NULL,
    wait_ms     bigint      NOT NULL,
    run_counts  integer[]   NOT NULL,
    wait_counts integer[]   NOT NULL,
    PRIMARY KEY (minute, worker, queue, job_type)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.2);

-- Who does something for all workers for the time being, such as measuring queues: a lease by the database's clock, one row per duty.
CREATE TABLE /*$schema*/pqrun.turns (
    duty   text        PRIMARY KEY,
    holder bigint      NOT NULL,   -- a number that a process has chosen for itself
    until  timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

ALTER FUNCTION /*$schema*/pqrun.enqueue(text, jsonb, text, text, timestamptz, integer, integer, double precision, double precision,
    double precision[], integer) RENAME TO enqueue_before_0008;

-- As before, with headers. Insert a job, or find the active one with the same key. A duplicate changes nothing and locks nothing;
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
    payload_version integer            DEFAULT 1,
    headers         jsonb              DEFAULT NULL
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
        WHEN jsonb_typeof(enqueue.headers) <> 'object' OR jsonb_path_exists(enqueue.headers, 'strict $.* ? (@.type() != "string")', silent => true)
            THEN 'headers: expected a JSON object of texts, or null for none; got another value'
        WHEN octet_length(enqueue.headers::text) > 16384
            THEN 'headers: expected at most 16384 bytes; got ' || octet_length(enqueue.headers::text)
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
             payload_version, headers)
        VALUES (enqueue.job_type, enqueue.payload, enqueue.queue, stored, due,
                CASE WHEN later THEN 'SCHEDULED' ELSE 'READY' END, enqueue.priority, enqueue.max_attempts,
                enqueue.timeout_seconds, enqueue.backoff_seconds, enqueue.payload_version, enqueue.headers)
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

-- Rights: as they were on the function; who may use the registry of workers may use the new tables.
DO $pqrun$
DECLARE
    old     regprocedure;
    new     regprocedure;
    granted record;
BEGIN
    SELECT p.oid INTO old FROM pg_catalog.pg_proc p
     WHERE p.pronamespace = /*$literal*/'pqrun'::regnamespace AND p.proname = 'enqueue_before_0008';
    SELECT p.oid INTO new FROM pg_catalog.pg_proc p
     WHERE p.pronamespace = /*$literal*/'pqrun'::regnamespace AND p.proname = 'enqueue';
    IF (SELECT p.proacl IS NOT NULL FROM pg_catalog.pg_proc p WHERE p.oid = old) THEN
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', new);
    END IF;
    FOR granted IN
        SELECT 'FUNCTION ' || new::text AS target, a.* FROM pg_catalog.pg_proc p, aclexplode(p.proacl) a WHERE p.oid = old
        UNION ALL
        SELECT 'TABLE ' || t.name::text, a.*
          FROM unnest(ARRAY[/*$literal*/'pqrun.statistics'::regclass, /*$literal*/'pqrun.turns'::regclass]) AS t(name),
               pg_catalog.pg_class c, aclexplode(c.relacl) a
         WHERE c.oid = /*$literal*/'pqrun.workers'::regclass
    LOOP
        EXECUTE format('GRANT %s ON %s TO %s %s', granted.privilege_type, granted.target,
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END,
                       CASE WHEN granted.is_grantable THEN 'WITH GRANT OPTION' ELSE '' END);
    END LOOP;
END
$pqrun$;

DROP FUNCTION /*$schema*/pqrun.enqueue_before_0008(text, jsonb, text, text, timestamptz, integer, integer, double precision,
    double precision, double precision[], integer);

ALTER TABLE /*$schema*/pqrun.jobs ADD COLUMN headers jsonb;   -- an object of texts: what travels beside the payload, such as a trace
