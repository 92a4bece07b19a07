-- How far the counting has come. $1 id bigint  $2 looked bigint  $3 matched bigint  $4 ids bigint[]: what it came to, NULL while it goes on
-- $5 is_cut boolean  $6 query text: what it means with all times written out. No row: it was stopped, or is not there any more.
UPDATE /*$schema*/pqrun.operations
   SET looked = $2::bigint, matched = $3::bigint, ids = $4::bigint[], is_cut = $5::boolean, query = $6::text, beat_at = clock_timestamp(),
       state = CASE WHEN $4::bigint[] IS NULL THEN state ELSE 'COUNTED' END
 WHERE id = $1::bigint AND state = 'COUNTING' AND stop_asked_at IS NULL RETURNING id
