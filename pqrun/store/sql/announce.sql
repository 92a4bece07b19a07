-- Tell workers that jobs are READY in lanes (queue and priority). $1 queue text[]  $2 priority smallint[]
-- $3 later boolean: and some SCHEDULED, so that each looks at once when the next is due
-- For jobs that were written without a word: by COPY, or right after a notification for the same lane.
SELECT count(pg_notify(/*$channel*/'pqrun', m.message)) AS told
  FROM (SELECT 'ready:' || u.priority || ':' || u.queue AS message FROM unnest($1::text[], $2::smallint[]) AS u(queue, priority)
        UNION ALL
        SELECT 'due:0' WHERE $3::boolean) m
