-- The migrations that were applied, in order.
SELECT version, name, applied_at FROM /*$schema*/pqrun.migrations ORDER BY version
