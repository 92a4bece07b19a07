-- Delete jobs that are in one of these states and that no worker has, with attempts and reports.
-- $1 id bigint[]  $2 status text[], any but RUNNING
-- One row for each that is gone; of the others nothing is said, nor of rows that another transaction has: inspect_many.sql tells.
WITH waiting AS MATERIALIZED (
    SELECT a.id FROM /*$schema*/pqrun.jobs_active a
     WHERE a.id = ANY ($1::bigint[]) AND a.status = ANY ($2::text[]) AND a.locked_at IS NULL ORDER BY a.id FOR UPDATE SKIP LOCKED
), finished AS MATERIALIZED (
    SELECT f.id FROM /*$schema*/pqrun.jobs_finished f
     WHERE f.id = ANY ($1::bigint[]) AND f.status = ANY ($2::text[]) ORDER BY f.id FOR UPDATE SKIP LOCKED
), unstarted AS (
    DELETE FROM /*$schema*/pqrun.jobs_active a USING waiting w WHERE a.id = w.id RETURNING a.id
), ended AS (
    DELETE FROM /*$schema*/pqrun.jobs_finished f USING finished o WHERE f.id = o.id RETURNING f.id
), reports AS (
    DELETE FROM /*$schema*/pqrun.progress p USING (SELECT id FROM unstarted UNION ALL SELECT id FROM ended) g WHERE p.job_id = g.id
), attempts_gone AS (
    DELETE FROM /*$schema*/pqrun.attempts a
     USING (SELECT id FROM unstarted UNION ALL SELECT id FROM ended) g
     WHERE a.job_id = g.id
)
SELECT id, false AS is_requested, 0::bigint AS messages FROM unstarted
UNION ALL
SELECT id, false, 0 FROM ended
