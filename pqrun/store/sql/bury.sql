-- Take workers for dead, if their beat is still the one that was observed. $1 workers.id bigint[]  $2 beat bigint[]
UPDATE /*$schema*/pqrun.workers w SET dead_at = clock_timestamp()
  FROM unnest($1::bigint[], $2::bigint[]) AS u(id, beat)
 WHERE w.id = u.id AND w.beat = u.beat AND w.dead_at IS NULL
RETURNING w.id, w.worker_id
