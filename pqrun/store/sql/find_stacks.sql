-- What workers have told of their handlers since they were asked. $1 workers.id bigint[]  $2 asked timestamptz: older answers are of
-- an earlier question. By the primary key.
SELECT w.id, w.stacks, w.stacks_at FROM /*$schema*/pqrun.workers w
 WHERE w.id = ANY ($1::bigint[]) AND w.stacks_at >= $2::timestamptz
