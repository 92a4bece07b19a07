-- What there is to know about why a job does not run: the job, its worker, the workers that could run it, and the jobs before it. $1 id bigint
-- $2 seconds float8: a beat older than this is no sign of life  $3 cap integer: so many jobs before it are counted at most, of each kind
-- $4 names integer: so many names of what is served at most
-- One snapshot, no locks. The job by the primary keys; the jobs before it by jobs_active_ready, from the near end of each range; workers are
-- few rows. A place in the queue is that of other jobs that no worker has lost: those wait apart.
WITH job AS MATERIALIZED (
    SELECT j.* FROM /*$schema*/pqrun.jobs j WHERE j.id = $1::bigint
), living AS MATERIALIZED (
    SELECT w.id, w.worker_id, j.job_type = ANY (w.job_types) AS serves_task, w.queues IS NULL OR j.queue = ANY (w.queues) AS serves_queue,
           w.queues, w.job_types, w.fetching
      FROM job j CROSS JOIN /*$schema*/pqrun.workers w
     WHERE w.dead_at IS NULL AND w.beat_at >= statement_timestamp() - $2::double precision * interval '1 second'
)
SELECT j.id, j.status, j.job_type, j.queue, j.priority, j.attempts, j.max_attempts, j.lost, j.last_error, j.payload_version, j.run_after,
       j.locked_at, j.locked_by, j.finished_at, j.cancel_requested_at,
       extract(epoch FROM j.run_after - statement_timestamp())::double precision AS due_in_seconds,
       extract(epoch FROM statement_timestamp() - j.locked_at)::double precision AS running_seconds,
       holder.hostname AS holder_hostname, holder.pid AS holder_pid, holder.id IS NOT NULL AS is_holder_known,
       holder.dead_at IS NOT NULL AS is_holder_dead,
       extract(epoch FROM statement_timestamp() - holder.beat_at)::double precision AS holder_beat_age_seconds,
       (SELECT count(*) FROM living) AS living,
       (SELECT count(*) FROM living WHERE serves_task) AS serving_task,
       (SELECT count(*) FROM living WHERE serves_queue) AS serving_queue,
       (SELECT count(*) FROM living WHERE serves_task AND serves_queue) AS serving,
       (SELECT count(*) FROM living WHERE serves_task AND serves_queue AND NOT fetching) AS serving_paused,
       (SELECT count(*) FROM living l JOIN /*$schema*/pqrun.jobs_active a ON a.status = 'RUNNING' AND a.worker = l.id
         WHERE l.serves_task AND l.serves_queue) AS serving_holds,
       ARRAY(SELECT DISTINCT t.name FROM living, unnest(job_types) AS t(name) WHERE NOT starts_with(t.name, '__')
              ORDER BY t.name LIMIT $4::integer) AS served_tasks,
       ARRAY(SELECT DISTINCT q.name FROM living, unnest(queues) AS q(name) ORDER BY q.name LIMIT $4::integer) AS served_queues,
       (SELECT max(s.version) FROM /*$schema*/pqrun.task_shapes s WHERE s.job_type = j.job_type) AS newest_version,
       CASE WHEN j.status = 'READY' THEN
         (SELECT count(*) FROM (SELECT FROM /*$schema*/pqrun.jobs_active a
           WHERE a.status = 'READY' AND a.lost = 0 AND a.queue = j.queue AND a.priority > j.priority LIMIT $3::integer) higher)
         + (SELECT count(*) FROM (SELECT FROM /*$schema*/pqrun.jobs_active a
             WHERE a.status = 'READY' AND a.lost = 0 AND a.queue = j.queue AND a.priority = j.priority AND a.place < j.place
             LIMIT $3::integer) earlier)
         ELSE 0 END AS before,
       queue_pause.paused_at AS queue_paused_at, queue_pause.reason AS queue_pause_reason,
       task_pause.paused_at AS task_paused_at, task_pause.reason AS task_pause_reason
  FROM job j LEFT JOIN /*$schema*/pqrun.workers holder ON j.status = 'RUNNING' AND holder.id = j.worker
  LEFT JOIN /*$schema*/pqrun.pauses queue_pause ON queue_pause.kind = 'queue' AND queue_pause.name = j.queue
  LEFT JOIN /*$schema*/pqrun.pauses task_pause ON task_pause.kind = 'task' AND task_pause.name = j.job_type
