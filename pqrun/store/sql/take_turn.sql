-- Take, or keep, the turn to do something for all processes. $1 duty text  $2 holder bigint  $3 seconds float8: for how long
-- One row if it is ours. Who sees that it is another's writes and locks nothing; of two that find it free at once the second one waits for
-- the first, looks again at the row as it is then (ON CONFLICT), and gets none. Counts on the primary key.
INSERT INTO /*$schema*/pqrun.turns AS t (duty, holder, until)
SELECT $1::text, $2::bigint, clock_timestamp() + $3::double precision * interval '1 second'
 WHERE NOT EXISTS (SELECT FROM /*$schema*/pqrun.turns o
                    WHERE o.duty = $1::text AND o.holder <> $2::bigint AND o.until > clock_timestamp())
ON CONFLICT (duty) DO UPDATE SET holder = excluded.holder, until = excluded.until
 WHERE t.holder = excluded.holder OR t.until <= clock_timestamp()
RETURNING t.holder
