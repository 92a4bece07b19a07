-- Numbers that change whenever something was written: what an open page watches. Of the statistics collector, so it reads no row.
-- $1 schema text
SELECT c.relname AS name, coalesce(s.n_tup_ins + s.n_tup_upd + s.n_tup_del, 0) AS writes
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_stat_all_tables s ON s.relid = c.oid
 WHERE c.relnamespace = (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = $1::text) AND c.relkind = 'r'
 ORDER BY 1
