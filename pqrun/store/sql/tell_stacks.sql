-- Where the handlers of this worker are, as it was asked. $1 workers.id bigint  $2 stacks text. By the primary key.
UPDATE /*$schema*/pqrun.workers SET stacks = $2::text, stacks_at = clock_timestamp() WHERE id = $1::bigint RETURNING id
