-- Attempts in groups of the same fingerprint, the group with the newest attempt first. $1 kind text[]  $2 job_type text, NULL: all
-- $3 since timestamptz, NULL: all; a group has one since then  $4 before bigint: groups whose newest attempt has a smaller id, NULL: all
-- $5 limit integer: groups returned  $6 integer: a group is counted no further  $7 integer: groups looked at
-- $8 age seconds float8: as since, so long ago
-- A loose scan of attempts_fingerprint: from each fingerprint the index leads to the next, and to the newest attempt of each. What it
-- costs grows with the groups, not with the attempts. Only groups that are returned are counted, in the index alone.
WITH RECURSIVE print AS (
    (SELECT a.fingerprint, 1 AS number FROM /*$schema*/pqrun.attempts a ORDER BY a.fingerprint LIMIT 1)
    UNION ALL
    SELECT n.fingerprint, p.number + 1
      FROM print p
     CROSS JOIN LATERAL (
        SELECT a.fingerprint FROM /*$schema*/pqrun.attempts a WHERE a.fingerprint > p.fingerprint ORDER BY a.fingerprint LIMIT 1) n
     WHERE p.number < $7::integer
), newest AS MATERIALIZED (
    SELECT l.*
      FROM print p
     CROSS JOIN LATERAL (
        SELECT a.id, a.job_id, a.fingerprint, a.job_type, a.kind, a.exception_type, a.frame, a.message, a.ended_at
          FROM /*$schema*/pqrun.attempts a WHERE a.fingerprint = p.fingerprint ORDER BY a.id DESC LIMIT 1) l
     WHERE l.kind = ANY ($1::text[]) AND ($2::text IS NULL OR l.job_type = $2::text)
       AND ($3::timestamptz IS NULL OR l.ended_at >= $3::timestamptz)
       AND ($8::double precision IS NULL OR extract(epoch FROM statement_timestamp() - l.ended_at)::double precision <= $8::double precision)
       AND ($4::bigint IS NULL OR l.id < $4::bigint)
     ORDER BY l.id DESC LIMIT $5::integer
)
SELECT n.fingerprint, n.job_type, n.kind, CASE WHEN n.kind <> 'cancelled' THEN n.exception_type END AS exception_type,
       CASE WHEN n.kind <> 'cancelled' THEN n.frame END AS frame, n.message, c.count, o.ended_at AS first_seen, n.ended_at AS last_seen,
       n.job_id, n.id AS attempt_id
  FROM newest n
 CROSS JOIN LATERAL (
    SELECT a.ended_at FROM /*$schema*/pqrun.attempts a WHERE a.fingerprint = n.fingerprint ORDER BY a.id LIMIT 1) o
 CROSS JOIN LATERAL (
    SELECT count(*) FROM (SELECT FROM /*$schema*/pqrun.attempts a WHERE a.fingerprint = n.fingerprint LIMIT $6::integer) l) c
 ORDER BY n.id DESC
