-- What all workers counted, added up by steps of time. $1 since timestamptz: the first step begins there  $2 until timestamptz, not included
-- $3 step seconds float8  $4 by text: what a row is of, 'queue', 'task', or 'all' together  $5 queue text, or NULL for all
-- $6 job_type text, or NULL for all. Counts on the primary key, by minute. Each bucket is a sum of its own: an array ends with its last
-- number that is not 0, and what is behind that is NULL.
SELECT date_bin($3::double precision * interval '1 second', s.minute, $1::timestamptz) AS at,
       CASE $4::text WHEN 'queue' THEN s.queue WHEN 'task' THEN s.job_type ELSE '' END AS key,
       sum(s.started)::bigint AS started, sum(s.arrived)::bigint AS arrived, sum(s.done)::bigint AS done, sum(s.failed)::bigint AS failed,
       sum(s.retrying)::bigint AS retrying, sum(s.snoozed)::bigint AS snoozed, sum(s.cancelled)::bigint AS cancelled,
       sum(s.lost)::bigint AS lost, sum(s.released)::bigint AS released, sum(s.run_ms)::double precision AS run_ms,
       sum(s.wait_ms)::double precision AS wait_ms,
       ARRAY[sum(s.run_counts[1]), sum(s.run_counts[2]), sum(s.run_counts[3]), sum(s.run_counts[4]), sum(s.run_counts[5]),
           sum(s.run_counts[6]), sum(s.run_counts[7]), sum(s.run_counts[8]), sum(s.run_counts[9]), sum(s.run_counts[10]),
           sum(s.run_counts[11]), sum(s.run_counts[12]), sum(s.run_counts[13]), sum(s.run_counts[14]), sum(s.run_counts[15]),
           sum(s.run_counts[16]), sum(s.run_counts[17]), sum(s.run_counts[18]), sum(s.run_counts[19])]::bigint[] AS run_counts,
       ARRAY[sum(s.wait_counts[1]), sum(s.wait_counts[2]), sum(s.wait_counts[3]), sum(s.wait_counts[4]), sum(s.wait_counts[5]),
           sum(s.wait_counts[6]), sum(s.wait_counts[7]), sum(s.wait_counts[8]), sum(s.wait_counts[9]), sum(s.wait_counts[10]),
           sum(s.wait_counts[11]), sum(s.wait_counts[12]), sum(s.wait_counts[13]), sum(s.wait_counts[14]), sum(s.wait_counts[15]),
           sum(s.wait_counts[16]), sum(s.wait_counts[17]), sum(s.wait_counts[18]), sum(s.wait_counts[19])]::bigint[] AS wait_counts
  FROM /*$schema*/pqrun.statistics s
 WHERE s.minute >= $1::timestamptz AND s.minute < $2::timestamptz
   AND ($5::text IS NULL OR s.queue = $5::text) AND ($6::text IS NULL OR s.job_type = $6::text)
 GROUP BY 1, 2
 ORDER BY 1, 2
