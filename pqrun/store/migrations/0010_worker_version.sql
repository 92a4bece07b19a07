-- What a worker says of itself: its pqrun, whether it claims, and, when it was asked, where its handlers are. Rewrites nothing.
ALTER TABLE /*$schema*/pqrun.workers
    ADD COLUMN version   text,                           -- of pqrun; NULL: of one that does not say
    ADD COLUMN fetching  boolean NOT NULL DEFAULT true,  -- false: it claims nothing for now (paused, or stopping)
    ADD COLUMN stacks    text,                           -- of its running handlers, as it last told them; 64 kB at most
    ADD COLUMN stacks_at timestamptz;
