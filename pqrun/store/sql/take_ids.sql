-- Ids for jobs that go by COPY, which returns nothing. $1 count integer
SELECT nextval(/*$literal*/'pqrun.jobs_id_seq') AS id FROM generate_series(1, $1::integer)
