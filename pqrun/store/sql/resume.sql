-- End the pause of a queue or a task. $1 kind text: 'queue' or 'task'  $2 name text. One row if it was paused.
WITH gone AS (
    DELETE FROM /*$schema*/pqrun.pauses p WHERE p.kind = $1::text AND p.name = $2::text RETURNING p.name
)
SELECT name, pg_notify(/*$channel*/'pqrun', 'pauses') IS NOT NULL AS told FROM gone
