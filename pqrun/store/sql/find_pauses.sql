-- What is paused, oldest first; no parameters.
SELECT kind, name, paused_at, reason FROM /*$schema*/pqrun.pauses ORDER BY paused_at, kind, name
