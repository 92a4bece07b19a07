-- Tell workers that jobs are READY in lanes (queue and priority). $1 queue text[]  $2 priority smallint[]
-- For jobs that were written without a word: by COPY, or right after a notification for the same lane.
SELECT count(pg_notify(/*$channel*/'pqrun', 'ready:' || u.priority || ':' || u.queue)) AS told
  FROM unnest($1::text[], $2::smallint[]) AS u(queue, priority)
