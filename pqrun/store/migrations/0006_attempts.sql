-- The attempts that did not succeed, kept with each job: settle.sql writes them, in the statement that writes what became of the job.
--
-- No foreign key: a job moves between the parts of jobs, and what is deleted by hand must not be slowed down by what it leaves behind
-- (prune_attempts.sql finds that). No column of jobs changes, so nobody is waited for.

CREATE SEQUENCE /*$schema*/pqrun.attempts_id_seq AS bigint;

CREATE TABLE /*$schema*/pqrun.attempts (
    id             bigint      NOT NULL DEFAULT nextval(/*$literal*/'pqrun.attempts_id_seq'),
    job_id         bigint      NOT NULL,
    duration_ms    bigint,     -- NULL: unknown
    started_at     timestamptz NOT NULL,
    ended_at       timestamptz NOT NULL,
    number         integer     NOT NULL,   -- the count of attempts when it started; begins anew after a retry by hand
    job_type       text        NOT NULL,
    queue          text        NOT NULL,
    kind           text        NOT NULL,
    status_after   text        NOT NULL,   -- what the job became
    worker         text,                   -- its worker_id
    exception_type text,
    frame          text,                   -- module:function:line, of the user's own code
    fingerprint    text        NOT NULL,   -- of job_type, exception_type (else kind), and module:function
    message        text,
    traceback      text,

    CONSTRAINT attempts_pkey PRIMARY KEY (job_id, id),
    CONSTRAINT attempts_kind CHECK (kind IN ('error', 'timeout', 'lost', 'cancelled', 'released'))
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.2);
ALTER SEQUENCE /*$schema*/pqrun.attempts_id_seq OWNED BY /*$schema*/pqrun.attempts.id;

-- Groups of errors: from one fingerprint to the next, and in each from the newest on (find_error_groups.sql).
CREATE INDEX attempts_fingerprint ON /*$schema*/pqrun.attempts (fingerprint, id);

-- Rights: who may use the registry of workers may use the attempts. And who may end a job, as ctx.complete does on a connection of the
-- user's, must be able to: its statement names this table, even where it writes nothing into it.
DO $pqrun$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT a.privilege_type, a.grantee, a.is_grantable FROM pg_catalog.pg_class c, aclexplode(c.relacl) a
         WHERE c.oid = /*$literal*/'pqrun.workers'::regclass
        UNION
        SELECT p.privilege_type, a.grantee, false FROM pg_catalog.pg_class c, aclexplode(c.relacl) a,
               (VALUES ('SELECT'), ('INSERT'), ('DELETE')) AS p(privilege_type)
         WHERE c.oid = /*$literal*/'pqrun.jobs_finished'::regclass AND a.privilege_type = 'INSERT'
    LOOP
        EXECUTE format('GRANT %s ON TABLE %s TO %s %s', granted.privilege_type, /*$literal*/'pqrun.attempts'::regclass,
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END,
                       CASE WHEN granted.is_grantable THEN 'WITH GRANT OPTION' ELSE '' END);
        IF granted.privilege_type = 'INSERT' THEN
            EXECUTE format('GRANT USAGE ON SEQUENCE %s TO %s %s', /*$literal*/'pqrun.attempts_id_seq'::regclass,
                           CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END,
                           CASE WHEN granted.is_grantable THEN 'WITH GRANT OPTION' ELSE '' END);
        END IF;
    END LOOP;
END
$pqrun$;
