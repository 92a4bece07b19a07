-- End the connections to this database that have this application_name, or one that begins with it and a space; not the own one.
-- $1 application_name text  $2 milliseconds to wait for the end of each bigint
SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, $2::bigint)) AS ended
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
   AND (application_name = $1::text OR starts_with(application_name, $1::text || ' '))
