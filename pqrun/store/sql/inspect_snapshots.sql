-- Who keeps dead rows from being removed, the oldest first, for pqrun doctor. $1 seconds: what is younger is left out  $2 limit integer
-- A backend whose details another role may not see still counts: its age in transactions is visible, its times are not.
SELECT h.kind, h.who, h.detail, h.seconds, h.transactions
  FROM (SELECT 'session' AS kind, concat_ws(' ', a.usename, nullif(a.application_name, '')) AS who,
               concat('pid ', a.pid, coalesce(', ' || a.state, '')) AS detail,
               extract(epoch FROM clock_timestamp() - a.xact_start)::double precision AS seconds, age(a.backend_xmin) AS transactions
          FROM pg_catalog.pg_stat_activity a
         WHERE a.backend_xmin IS NOT NULL AND a.backend_type = 'client backend' AND a.pid <> pg_catalog.pg_backend_pid()
        UNION ALL
        SELECT 'prepared', p.owner::text, p.gid, extract(epoch FROM clock_timestamp() - p.prepared)::double precision, age(p.transaction)
          FROM pg_catalog.pg_prepared_xacts p
        UNION ALL
        SELECT 'slot', s.slot_name::text, CASE WHEN s.active THEN 'active' ELSE 'not in use' END, NULL, age(coalesce(s.xmin, s.catalog_xmin))
          FROM pg_catalog.pg_replication_slots s WHERE coalesce(s.xmin, s.catalog_xmin) IS NOT NULL
        UNION ALL
        SELECT 'standby', concat_ws(' ', r.usename, nullif(r.application_name, '')), host(r.client_addr), NULL, age(r.backend_xmin)
          FROM pg_catalog.pg_stat_replication r WHERE r.backend_xmin IS NOT NULL) h
 WHERE h.seconds >= $1::double precision OR h.seconds IS NULL
 ORDER BY h.transactions DESC LIMIT $2::integer
