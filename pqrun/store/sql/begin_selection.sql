-- Where a walk over jobs by a filter ends: what the clock shows, and the last id that there is. What comes later is not looked at.
SELECT statement_timestamp() AS now,
       greatest((SELECT max(a.id) FROM /*$schema*/pqrun.jobs_active a), (SELECT max(f.id) FROM /*$schema*/pqrun.jobs_finished f), 0) AS last_id
