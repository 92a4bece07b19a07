-- A new operation. $1 actor text  $2 action text  $3 arguments text (JSON)  $4 query text, or NULL  $5 ids bigint[]: chosen one by one;
-- NULL: they are to be counted.
INSERT INTO /*$schema*/pqrun.operations (actor, action, arguments, query, ids, matched, looked, state)
VALUES ($1::text, $2::text, $3::text::jsonb, $4::text, $5::bigint[], coalesce(cardinality($5::bigint[]), 0),
        coalesce(cardinality($5::bigint[]), 0), CASE WHEN $5::bigint[] IS NULL THEN 'COUNTING' ELSE 'COUNTED' END)
RETURNING id
