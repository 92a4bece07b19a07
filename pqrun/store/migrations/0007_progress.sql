-- The last report of each job that makes any: how far its handler has come. Apart from jobs, so that a report rewrites neither the row that
-- holds the payload nor an index of claims: all its updates but the first are HOT. No foreign key, which jobs cannot be the target of: rows
-- go with their jobs (prune.sql, delete_many.sql), and what plain SQL leaves behind is swept up (sweep_progress.sql).

CREATE TABLE /*$schema*/pqrun.progress (
    job_id      bigint           PRIMARY KEY,
    claim_id    bigint           NOT NULL,   -- whose report it is: written only while the job has this claim
    attempt     integer          NOT NULL,
    value       double precision NOT NULL,
    message     text,
    reported_at timestamptz      NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT progress_values CHECK (value >= 0 AND value <= 1 AND length(message) <= 500)
) WITH (fillfactor = 60, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);

-- Rights: who may use the registry of workers may use the reports.
DO $pqrun$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT a.* FROM pg_catalog.pg_class c, aclexplode(c.relacl) a WHERE c.oid = /*$literal*/'pqrun.workers'::regclass
    LOOP
        EXECUTE format('GRANT %s ON TABLE %s TO %s %s', granted.privilege_type, /*$literal*/'pqrun.progress'::regclass,
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE granted.grantee::regrole::text END,
                       CASE WHEN granted.is_grantable THEN 'WITH GRANT OPTION' ELSE '' END);
    END LOOP;
END
$pqrun$;
