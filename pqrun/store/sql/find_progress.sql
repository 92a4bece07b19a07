-- How far these jobs have come: one row for each that exists, with NULL where it never reported. $1 id bigint[]
-- State and report are of one snapshot: who sees the end of a job sees its last report, which was written before.
SELECT j.id, j.status, p.claim_id, p.attempt, p.value, p.message, p.reported_at
  FROM (SELECT a.id, a.status FROM /*$schema*/pqrun.jobs_active a WHERE a.id = ANY ($1::bigint[])
        UNION ALL
        SELECT f.id, f.status FROM /*$schema*/pqrun.jobs_finished f WHERE f.id = ANY ($1::bigint[])) j
  LEFT JOIN LATERAL (SELECT * FROM /*$schema*/pqrun.progress p WHERE p.job_id = j.id OFFSET 0) p ON true
