-- Whether this claim finished its job (by complete() in the handler's own transaction). $1 id bigint  $2 claim_id bigint
SELECT f.status FROM /*$schema*/pqrun.jobs_finished f WHERE f.id = $1::bigint AND f.claim_id = $2::bigint
