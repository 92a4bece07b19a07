-- What this worker serves from now on. $1 workers.id bigint  $2 queues text[] or NULL for all  $3 concurrency integer
-- $4 slots text: JSON object of queues with slots of their own  $5 fetching boolean: whether it claims
UPDATE /*$schema*/pqrun.workers SET queues = $2::text[], concurrency = $3::integer, slots = $4::text::jsonb, fetching = $5::boolean
 WHERE id = $1::bigint RETURNING id
