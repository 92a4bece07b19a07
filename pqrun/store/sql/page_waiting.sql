-- A piece of the jobs that have not finished, in order of ids. $1 after id bigint  $2 last id bigint  $3 rows integer
-- $4 bytes bigint: the piece ends behind the row in which so many, as they are stored, are reached  $5 job_type text[]: only these are
-- given. Then one row with the last id that was looked at (NULL: the end) and how many were. Reads without locks, in a statement of its
-- own for each piece: one snapshot for all would hold back vacuum. Counts on jobs_active_pkey with the id as a boundary.
WITH looked AS MATERIALIZED (
    SELECT s.*, sum(pg_column_size(s.payload)) OVER (ROWS UNBOUNDED PRECEDING) - coalesce(pg_column_size(s.payload), 0) AS bytes_before
      FROM (SELECT a.id, a.job_type, a.payload_version, CASE WHEN a.job_type = ANY ($5::text[]) THEN a.payload END AS payload
              FROM /*$schema*/pqrun.jobs_active a
             WHERE a.id > $1::bigint AND a.id <= $2::bigint ORDER BY a.id LIMIT $3::integer) s
)
SELECT id, job_type, payload_version, payload::text AS payload
  FROM looked WHERE bytes_before < $4::bigint AND payload IS NOT NULL
UNION ALL
SELECT max(id), NULL, count(*)::integer, NULL FROM looked WHERE coalesce(bytes_before, 0) < $4::bigint
