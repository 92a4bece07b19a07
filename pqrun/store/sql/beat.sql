-- A sign of life of this worker, and the beats of all. $1 workers.id bigint. Only is_self tells whether the own row still counts:
-- a worker that was taken for dead must register anew. With the own row come the present pauses, [[kind, name, seconds of the epoch], …]
-- as JSON text (NULL: none), and what an operator wants of this worker: the truth that notifications only hint at.
WITH own AS (
    UPDATE /*$schema*/pqrun.workers SET beat = beat + 1, beat_at = clock_timestamp()
     WHERE id = $1::bigint AND dead_at IS NULL RETURNING id, beat, worker_id, has_lock, wanted::text AS wanted
)
SELECT id, beat, worker_id, has_lock, true AS is_self, wanted,
       (SELECT json_agg(json_build_array(p.kind, p.name, date_part('epoch', p.paused_at)))::text FROM /*$schema*/pqrun.pauses p) AS pauses
  FROM own
UNION ALL
SELECT w.id, w.beat, w.worker_id, w.has_lock, false, NULL, NULL
  FROM /*$schema*/pqrun.workers w WHERE w.id <> $1::bigint AND w.dead_at IS NULL
