-- One row about the server and this session, for pqrun doctor. Reads no table of ours, so that it also answers before the first migration.
SELECT current_setting('server_version') AS version,
       current_setting('server_version_num')::integer AS version_number,
       pg_catalog.pg_is_in_recovery() AS is_standby,
       extract(epoch FROM clock_timestamp())::double precision AS clock,
       current_setting('max_connections')::integer AS max_connections,
       -- reserved_connections came with PostgreSQL 16.
       current_setting('superuser_reserved_connections')::integer
           + coalesce(current_setting('reserved_connections', true)::integer, 0) AS reserved_connections,
       (SELECT count(*) FROM pg_catalog.pg_stat_activity a WHERE a.backend_type = 'client backend') AS connections,
       current_setting('autovacuum')::boolean AS has_autovacuum,
       current_setting('track_counts')::boolean AS has_counts,
       (SELECT s.setting::double precision FROM pg_catalog.pg_settings s WHERE s.name = 'autovacuum_naptime') AS naptime_seconds,
       (SELECT s.setting::double precision / 1000 FROM pg_catalog.pg_settings s
         WHERE s.name = 'idle_in_transaction_session_timeout') AS idle_timeout_seconds,
       current_setting('fsync')::boolean AS is_durable,
       current_user::text AS role,
       (SELECT r.rolconnlimit FROM pg_catalog.pg_roles r WHERE r.rolname = current_user) AS role_limit,
       (SELECT d.datconnlimit FROM pg_catalog.pg_database d WHERE d.datname = current_database()) AS database_limit
