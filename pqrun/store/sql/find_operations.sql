-- Operations, the latest first. $1 id bigint, or NULL for all  $2 before id bigint  $3 rows integer. Counts on the primary key.
SELECT id, actor, action, arguments::text AS arguments, query, state, matched, looked, is_cut, position, done, requested,
       reasons::text AS reasons, refusals::text AS refusals, error, created_at, started_at, ended_at, stop_asked_at,
       extract(epoch FROM clock_timestamp() - beat_at)::double precision AS beat_seconds, statement_timestamp() AS now
  FROM /*$schema*/pqrun.operations
 WHERE id < $2::bigint AND ($1::bigint IS NULL OR id = $1::bigint) ORDER BY id DESC LIMIT $3::integer
