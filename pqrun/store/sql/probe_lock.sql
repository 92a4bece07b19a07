-- Of these workers, those whose session lock is free. $1 workers.id bigint[]. Taken for the length of this statement only.
SELECT u.id FROM unnest($1::bigint[]) AS u(id)
 WHERE pg_try_advisory_xact_lock(hashtext(/*$channel*/'pqrun'), (u.id % 2147483647)::integer)
