-- This worker leaves; jobs that it could not give back are recovered as a dead worker's are. $1 workers.id bigint
UPDATE /*$schema*/pqrun.workers SET dead_at = clock_timestamp() WHERE id = $1::bigint AND dead_at IS NULL RETURNING id
