-- Size, dead rows and vacuum of each of our tables, for pqrun doctor; by the statistics that autovacuum itself goes by.
SELECT c.relname::text AS name, pg_catalog.pg_total_relation_size(c.oid) AS bytes,
       coalesce(s.n_live_tup, 0) AS live_rows, coalesce(s.n_dead_tup, 0) AS dead_rows,
       extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::double precision AS vacuumed_seconds,
       coalesce(array_to_string(c.reloptions, ' ') ~* 'autovacuum_enabled=(false|off|0|no)', false) AS is_left_alone
  FROM pg_catalog.pg_class c
  LEFT JOIN pg_catalog.pg_stat_all_tables s ON s.relid = c.oid
 WHERE c.relkind = 'r'
   AND c.relnamespace = (SELECT w.relnamespace FROM pg_catalog.pg_class w WHERE w.oid = /*$literal*/'pqrun.workers'::regclass)
 ORDER BY c.relname
