-- How often each job was put off by its own handler. Nothing is rewritten: the default is kept in the catalog, and no CHECK comes with it,
-- which would read the whole history under this lock.
ALTER TABLE /*$schema*/pqrun.jobs ADD COLUMN snoozes integer NOT NULL DEFAULT 0;
