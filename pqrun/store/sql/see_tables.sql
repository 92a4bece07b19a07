-- The tables of the schema with their sizes, and what vacuum has to do with them. $1 schema text
-- Estimates of the statistics collector: nothing is counted.
SELECT c.relname AS name, pg_total_relation_size(c.oid) AS bytes, pg_indexes_size(c.oid) AS index_bytes,
       coalesce(s.n_live_tup, 0) AS live, coalesce(s.n_dead_tup, 0) AS dead, greatest(s.last_vacuum, s.last_autovacuum) AS vacuumed_at,
       greatest(s.last_analyze, s.last_autoanalyze) AS analyzed_at, age(c.relfrozenxid)::bigint AS age
  FROM pg_catalog.pg_class c
  LEFT JOIN pg_catalog.pg_stat_all_tables s ON s.relid = c.oid
 WHERE c.relnamespace = (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = $1::text) AND c.relkind = 'r'
 ORDER BY 2 DESC, 1
