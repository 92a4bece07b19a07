-- Queues: pauses for all workers, and what each worker serves, as it is and as it is wanted.

CREATE TABLE /*$schema*/pqrun.pauses (
    kind      text        NOT NULL,
    name      text        NOT NULL,   -- of the queue, or of the task (job_type)
    paused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason    text,

    CONSTRAINT pauses_pkey PRIMARY KEY (kind, name),
    CONSTRAINT pauses_values CHECK (kind IN ('queue', 'task') AND length(name) BETWEEN 1 AND 200 AND length(reason) BETWEEN 1 AND 1000)
) WITH (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- What is paused, for a claim. The lock is what makes a pause take effect at once: claims share it until they commit, a pause takes it
-- alone (pause.sql). So a pause waits for the claims under way, which have not seen it, and a claim that comes later waits for the
-- pause and then sees it: the look below has a snapshot of its own, taken after the lock (READ COMMITTED, and the function is VOLATILE).
-- -1 is no worker's key (hold_lock.sql).
CREATE FUNCTION /*$schema*/pqrun.paused(OUT queues text[], OUT tasks text[]) LANGUAGE plpgsql VOLATILE AS $pqrun$
BEGIN
    queues := '{}';
    tasks := '{}';
    -- As expressions, not queries, where that will do: this runs with every claim.
    IF pg_catalog.pg_advisory_xact_lock_shared(pg_catalog.hashtext(/*$channel*/'pqrun'), -1) IS NULL THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM /*$schema*/pqrun.pauses) THEN
        SELECT coalesce(pg_catalog.array_agg(p.name) FILTER (WHERE p.kind = 'queue'), '{}'),
               coalesce(pg_catalog.array_agg(p.name) FILTER (WHERE p.kind = 'task'), '{}')
          INTO queues, tasks FROM /*$schema*/pqrun.pauses p;
    END IF;
END
$pqrun$;

ALTER TABLE /*$schema*/pqrun.workers
    ADD COLUMN concurrency integer,                     -- handlers at once, all together; NULL: of a version that does not say
    ADD COLUMN slots       jsonb NOT NULL DEFAULT '{}', -- queue → handlers of its own at once; the others share what is left
    ADD COLUMN wanted      jsonb;                       -- what an operator wants of this worker; its beat brings it there

-- Rights: who may use the registry of workers may use the pauses, and claim.
DO $pqrun$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT a.* FROM pg_catalog.pg_class c, aclexplode(c.relacl) a WHERE c.oid = /*$literal*/'pqrun.workers'::regclass
    LOOP
        EXECUTE format('GRANT %s ON TABLE %s TO %s %s', granted.privilege_type, /*$literal*/'pqrun.pauses'::regclass,
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END,
                       CASE WHEN granted.is_grantable THEN 'WITH GRANT OPTION' ELSE '' END);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', /*$literal*/'pqrun.paused'::regproc || '()',
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END);
    END LOOP;
END
$pqrun$;
