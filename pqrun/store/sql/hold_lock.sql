-- The session lock of a worker: PostgreSQL frees it when the connection dies. $1 workers.id bigint
-- One key of 64 bits: half from the schema's name, so that two schemas in one database do not meet, half from the id.
WITH locked AS MATERIALIZED (
    SELECT pg_try_advisory_lock(hashtext(/*$channel*/'pqrun'), ($1::bigint % 2147483647)::integer) AS has_lock)
UPDATE /*$schema*/pqrun.workers w SET has_lock = l.has_lock FROM locked l WHERE w.id = $1::bigint RETURNING w.has_lock
