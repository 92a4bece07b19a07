-- READY → RUNNING for as many jobs as fit, lane by lane (a lane is a queue and a priority), in the order of the arrays.
-- $1 queue text[]  $2 priority smallint[]  $3 cursor bigint[] (only places after it are looked at)  $4 job types served text[]
-- $5 limit integer  $6 look integer: rows looked at per lane  $7 workers.id bigint  $8 worker_id text
-- $9 free integer: slots that are free now  $10 proven text[]: types that may be claimed beyond them (never with max_attempts = 1);
-- the first job that may not ends the claim, where it may go beyond them at all  $11 alive bigint[]: ids not to be claimed
-- Lanes of paused queues are not looked at, and jobs of paused tasks are passed as those not served; the function paused() closes the
-- race with a pause that commits meanwhile, and is called once.
--
-- Counts on jobs_active_ready with place as an index boundary: as a filter behind ORDER BY priority DESC, place, each claim would
-- read the dead entries of all earlier ones while a snapshot is held open (measured: down to a tenth after 300,000 jobs).
-- A row is looked at again when it is locked, since it may have failed, or lost its worker, a moment ago; and found by its ctid, twice: of
-- a version that is not the latest any more nothing worse comes than that it is passed. looked is read lazily, so lanes after a full
-- claim cost nothing. Rows that a locked or unserved job hides are passed: the scan from the start finds them later. Times are seconds
-- of the epoch: the driver takes ten times as long to read a timestamp, and few are looked at.
-- A row that somebody holds counts as one for a free slot: so nothing is barred in a claim for free slots alone.
-- Rows without job, only when the claim came back short: per lane the last place looked at, NULL where the claim ended before a job
-- that needs a free slot; and, as claim_id, how many rows were looked at: $6 where there may be more behind them.
WITH paused AS MATERIALIZED (
    SELECT p.queues, p.tasks FROM /*$schema*/pqrun.paused() p
), looked AS MATERIALIZED (
    SELECT r.*, count(*) FILTER (WHERE $5::integer > $9::integer AND r.served AND r.rank > $9::integer AND (r.max_attempts = 1 OR NOT r.proven))
                OVER (ROWS UNBOUNDED PRECEDING) AS barred
      FROM (SELECT s.*, count(*) FILTER (WHERE s.served) OVER (ROWS UNBOUNDED PRECEDING) AS rank
              FROM (SELECT lane.number, l.spot, l.place, l.max_attempts, l.job_type = ANY ($4::text[]) AND l.id <> ALL ($11::bigint[])
                               AND l.job_type <> ALL ((SELECT tasks FROM paused)::text[]) AS served,
                           l.job_type = ANY ($10::text[]) AS proven
                      FROM unnest($1::text[], $2::smallint[], $3::bigint[]) WITH ORDINALITY AS lane(queue, priority, cursor, number)
                     CROSS JOIN LATERAL (
                        SELECT a.ctid AS spot, a.id, a.place, a.job_type, a.max_attempts FROM /*$schema*/pqrun.jobs_active a
                         WHERE a.status = 'READY' AND a.lost = 0
                           AND a.queue = lane.queue AND a.priority = lane.priority AND a.place > lane.cursor
                         ORDER BY a.place LIMIT $6::integer) l
                     WHERE lane.queue <> ALL ((SELECT queues FROM paused)::text[])) s) r
), picked AS MATERIALIZED (
    SELECT l.number, l.spot
      FROM looked l
     CROSS JOIN LATERAL (
        SELECT FROM /*$schema*/pqrun.jobs_active a
         WHERE a.ctid = l.spot AND a.status = 'READY' AND a.lost = 0 AND a.attempts < a.max_attempts FOR UPDATE SKIP LOCKED) a
     WHERE l.served AND l.barred = 0
       AND EXISTS (SELECT FROM /*$schema*/pqrun.workers w WHERE w.id = $7::bigint AND w.dead_at IS NULL)
     LIMIT $5::integer
), claimed AS (
    UPDATE /*$schema*/pqrun.jobs_active a
       SET status = 'RUNNING', attempts = a.attempts + 1, locked_at = n.now, locked_by = $8::text, worker = $7::bigint,
           claim_id = nextval(/*$literal*/'pqrun.claims_id_seq'), updated_at = n.now
      FROM picked p CROSS JOIN (SELECT clock_timestamp() AS now) n
     WHERE a.ctid = p.spot
    RETURNING p.number::integer AS lane, a.place, a.id, a.claim_id, a.queue, a.job_type, a.payload::text AS payload, a.priority,
              a.attempts, a.max_attempts, date_part('epoch', a.run_after) AS run_after, a.timeout_seconds,
              date_part('epoch', a.locked_at) AS locked_at, a.dedupe_key, a.last_error, date_part('epoch', a.created_at) AS created_at,
              a.lost, a.releases, a.snoozes, a.backoff_seconds, a.payload_version,
              date_part('epoch', a.scheduled_for) AS scheduled_for, a.headers::text AS headers
)
SELECT * FROM claimed
UNION ALL
SELECT number::integer, CASE WHEN max(barred) > 0 THEN NULL ELSE max(place) END, NULL, count(*), NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM looked
 WHERE (SELECT count(*) FROM picked) < $5::integer
 GROUP BY number
