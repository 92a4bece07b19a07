-- What this role may not do that a worker does, a row each, for pqrun doctor. Sequences and tables of our schema; migrations are only read.
WITH ours AS (
    SELECT c.oid, c.relname, c.relkind FROM pg_catalog.pg_class c
     WHERE c.relnamespace = (SELECT w.relnamespace FROM pg_catalog.pg_class w WHERE w.oid = /*$literal*/'pqrun.workers'::regclass)
)
SELECT o.relname::text AS name, lower(p.privilege) AS privilege
  FROM ours o CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'USAGE']) AS p(privilege)
 WHERE CASE   -- asked in this order: each function takes relations of its kind alone
           WHEN o.relkind = 'S' THEN p.privilege = 'USAGE' AND NOT pg_catalog.has_sequence_privilege(o.oid, p.privilege)
           WHEN o.relkind NOT IN ('r', 'p') OR p.privilege = 'USAGE' OR o.relname = 'migrations' AND p.privilege <> 'SELECT' THEN false
           ELSE NOT pg_catalog.has_table_privilege(o.oid, p.privilege) END
 ORDER BY 1, 2
