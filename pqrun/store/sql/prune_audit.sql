-- Delete a piece of the audit log, and of operations that are over or were left by their process, once they are so old.
-- $1 age seconds float8  $2 limit integer: rows looked at of each, the oldest
-- One worker at a time, as prune.sql. Both have ids in the order of time, so the oldest rows are the first of the primary keys, and a row
-- that is younger is left. A piece that deleted nothing is the last one.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtext(/*$channel*/'pqrun:prune'), 0) AS is_mine
), entries AS (
    DELETE FROM /*$schema*/pqrun.audit a
     USING (SELECT o.id, o.at FROM /*$schema*/pqrun.audit o, turn t WHERE t.is_mine ORDER BY o.id LIMIT $2::integer) old
     WHERE a.id = old.id AND old.at < statement_timestamp() - $1::double precision * interval '1 second'
    RETURNING a.id
), over AS (
    DELETE FROM /*$schema*/pqrun.operations p
     USING (SELECT o.id FROM /*$schema*/pqrun.operations o, turn t WHERE t.is_mine ORDER BY o.id LIMIT $2::integer) old
     WHERE p.id = old.id
       AND coalesce(p.ended_at, p.beat_at) < statement_timestamp() - $1::double precision * interval '1 second'
    RETURNING p.id
)
SELECT (SELECT is_mine FROM turn) AS is_mine, ((SELECT count(*) FROM entries) + (SELECT count(*) FROM over))::integer AS deleted
