-- A piece is done. $1 id bigint  $2 position bigint before it  $3 position bigint behind it  $4 done bigint  $5 requested bigint
-- $6 reasons text (JSON): refused by reason, in all so far  $7 refusals text (JSON). Says whether it is to stop.
-- No row: another process has taken it over, whose position differs.
UPDATE /*$schema*/pqrun.operations
   SET position = $3::bigint, done = done + $4::bigint, requested = requested + $5::bigint, reasons = $6::text::jsonb,
       refusals = $7::text::jsonb, beat_at = clock_timestamp()
 WHERE id = $1::bigint AND state = 'RUNNING' AND position = $2::bigint RETURNING stop_asked_at IS NOT NULL AS is_stopped
