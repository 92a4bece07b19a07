-- The indexes of the schema, the largest first: their size, how often they were used since the statistics began, and whether they are
-- whole. $1 schema text. Estimates of the statistics collector: nothing is counted.
SELECT c.relname AS name, t.relname AS table_name, pg_relation_size(c.oid) AS bytes, coalesce(s.idx_scan, 0) AS scans,
       i.indisvalid AS is_valid
  FROM pg_catalog.pg_index i
  JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid AND c.relkind = 'i'
  JOIN pg_catalog.pg_class t ON t.oid = i.indrelid
  LEFT JOIN pg_catalog.pg_stat_all_indexes s ON s.indexrelid = i.indexrelid
 WHERE c.relnamespace = (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = $1::text)
 ORDER BY 3 DESC, 1
