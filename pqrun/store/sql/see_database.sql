-- The server and what goes on in this database: the clock, the longest open transaction, connections, the backlog of notifications.
-- Of sessions of other roles a role without pg_read_all_stats sees no more than that they are there.
SELECT clock_timestamp() AS now, current_setting('server_version') AS version, current_database()::text AS database,
       current_setting('max_connections')::integer AS max_connections, pg_is_in_recovery() AS is_standby,
       pg_notification_queue_usage() AS notify_usage, current_setting('autovacuum')::boolean AS autovacuum, o.connections,
       o.longest_seconds, o.longest_application, o.longest_state, o.longest_pid, o.waiting
  FROM (SELECT count(*) AS connections,
               max(extract(epoch FROM clock_timestamp() - a.xact_start))::double precision AS longest_seconds,
               (array_agg(a.application_name ORDER BY a.xact_start))[1] AS longest_application,
               (array_agg(a.state ORDER BY a.xact_start))[1] AS longest_state,
               (array_agg(a.pid ORDER BY a.xact_start))[1] AS longest_pid,
               count(*) FILTER (WHERE a.wait_event_type = 'Lock') AS waiting
          FROM pg_catalog.pg_stat_activity a
         WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend') o
