-- Who did what from the pages, and actions on many jobs that the pages carry out in the background. New tables only: nothing waits for it.

-- One row per action, never changed. No foreign keys: a job that is deleted keeps its history here.
CREATE TABLE /*$schema*/pqrun.audit (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor        text        NOT NULL,               -- as the application that shows the pages names him
    action       text        NOT NULL,               -- retry, cancel, delete, …: a word of the pages
    target       text        NOT NULL,               -- in words: job 7, schedule nightly, or the query
    job_id       bigint,                             -- the job it was done to, where it was one
    made_id      bigint,                             -- the job that it made
    operation_id bigint,
    jobs         bigint      NOT NULL DEFAULT 0,     -- how many it was done to
    outcome      text        NOT NULL,               -- done, or why not

    CONSTRAINT audit_values CHECK (length(actor) BETWEEN 1 AND 200 AND length(action) BETWEEN 1 AND 100 AND jobs >= 0)
);
CREATE INDEX audit_job ON /*$schema*/pqrun.audit (job_id, id) WHERE job_id IS NOT NULL;
CREATE INDEX audit_made ON /*$schema*/pqrun.audit (made_id, id) WHERE made_id IS NOT NULL;

-- An action on many jobs: counted first, which freezes the ids, then started by its author, and worked through in pieces.
CREATE TABLE /*$schema*/pqrun.operations (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    actor         text        NOT NULL,
    action        text        NOT NULL,              -- of pqrun.job.bulk
    arguments     jsonb       NOT NULL DEFAULT '{}', -- queue, priority
    query         text,                              -- what was asked for; NULL: jobs that were chosen one by one
    state         text        NOT NULL DEFAULT 'COUNTING',
    ids           bigint[],                          -- what it is about, while it is not over
    matched       bigint      NOT NULL DEFAULT 0,    -- how many those are
    looked        bigint      NOT NULL DEFAULT 0,    -- jobs that were looked at to count them
    is_cut        boolean     NOT NULL DEFAULT false,-- there are more, which it leaves alone
    position      bigint      NOT NULL DEFAULT 0,    -- how many of them have been worked through
    done          bigint      NOT NULL DEFAULT 0,
    requested     bigint      NOT NULL DEFAULT 0,    -- of those, running jobs whose workers were asked to stop them
    reasons       jsonb       NOT NULL DEFAULT '{}', -- how many were refused, by reason
    refusals      jsonb       NOT NULL DEFAULT '[]', -- the first of them: id, reason, holder
    error         text,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at    timestamptz,
    ended_at      timestamptz,
    beat_at       timestamptz NOT NULL DEFAULT clock_timestamp(),  -- the last sign of life of the process that works on it
    stop_asked_at timestamptz,

    CONSTRAINT operations_state CHECK (state IN ('COUNTING', 'COUNTED', 'RUNNING', 'DONE', 'STOPPED', 'FAILED')
        AND (ended_at IS NOT NULL) = (state IN ('DONE', 'STOPPED', 'FAILED'))),
    CONSTRAINT operations_values CHECK (length(actor) BETWEEN 1 AND 200 AND jsonb_typeof(arguments) = 'object'
        AND jsonb_typeof(reasons) = 'object' AND jsonb_typeof(refusals) = 'array')
) WITH (fillfactor = 70);

-- Rights: who may use the registry of workers may use these.
DO $pqrun$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT t.name, a.* FROM pg_catalog.pg_class c, aclexplode(c.relacl) a,
               (VALUES (/*$literal*/'pqrun.audit'::regclass), (/*$literal*/'pqrun.operations'::regclass)) AS t (name)
         WHERE c.oid = /*$literal*/'pqrun.workers'::regclass
    LOOP
        EXECUTE format('GRANT %s ON TABLE %s TO %s %s', granted.privilege_type, granted.name,
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END,
                       CASE WHEN granted.is_grantable THEN 'WITH GRANT OPTION' ELSE '' END);
    END LOOP;
END
$pqrun$;
