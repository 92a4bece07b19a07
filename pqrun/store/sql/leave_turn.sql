-- Give a turn back before its time. $1 duty text  $2 holder bigint
-- A turn that is another's by now stays.
DELETE FROM /*$schema*/pqrun.turns t WHERE t.duty = $1::text AND t.holder = $2::bigint RETURNING t.duty
