-- Move jobs that have not started to another lane. $1 id bigint[]  $2 status text[]: SCHEDULED, READY or both
-- $3 queue text, or NULL to keep it  $4 priority smallint, or NULL to keep it
-- One row for each that is there now, those included that were before and are left as they are. Of the others nothing is said, nor of
-- rows that another transaction has: inspect_many.sql tells.
-- A new place each, in the order of ids: cursors of claims may have passed the old one in the new lane (see claim.sql).
WITH target AS MATERIALIZED (
    SELECT a.id, a.queue <> coalesce($3::text, a.queue) OR a.priority <> coalesce($4::smallint, a.priority) AS is_elsewhere
      FROM /*$schema*/pqrun.jobs_active a
     WHERE a.id = ANY ($1::bigint[]) AND a.status = ANY ($2::text[]) AND a.locked_at IS NULL ORDER BY a.id FOR UPDATE SKIP LOCKED
), placed AS MATERIALIZED (
    SELECT id, nextval(/*$literal*/'pqrun.jobs_place_seq') AS place FROM target WHERE is_elsewhere
), moved AS (
    UPDATE /*$schema*/pqrun.jobs_active a
       SET queue = coalesce($3::text, a.queue), priority = coalesce($4::smallint, a.priority), place = p.place, updated_at = clock_timestamp()
      FROM placed p WHERE a.id = p.id
    RETURNING a.queue, a.priority, a.status, a.lost
), told AS MATERIALIZED (
    SELECT count(pg_notify(/*$channel*/'pqrun', m.message)) AS messages
      FROM (SELECT DISTINCT CASE WHEN lost > 0 THEN 'suspect:' ELSE 'ready:' END || priority || ':' || queue AS message
              FROM moved WHERE status = 'READY') m
)
SELECT t.id, false AS is_requested, (SELECT messages FROM told) AS messages FROM target t
