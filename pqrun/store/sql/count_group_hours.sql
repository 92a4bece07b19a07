-- Attempts of groups by hour of the last day, of the newest so many of each group. $1 fingerprint text[]  $2 limit integer
-- hour: 0 is the present one, 23 the oldest. is_cut: the group has more than were looked at, so hours before its last one are unknown.
-- By attempts_fingerprint.
SELECT g.fingerprint, h.hour, count(*)::integer AS attempts, bool_or(h.number = $2::integer) AS is_cut
  FROM unnest($1::text[]) AS g(fingerprint)
 CROSS JOIN LATERAL (
    SELECT floor(extract(epoch FROM statement_timestamp() - a.ended_at) / 3600)::integer AS hour,
           row_number() OVER (ORDER BY a.id DESC) AS number
      FROM (SELECT b.id, b.ended_at FROM /*$schema*/pqrun.attempts b
             WHERE b.fingerprint = g.fingerprint ORDER BY b.id DESC LIMIT $2::integer) a) h
 WHERE h.hour BETWEEN 0 AND 23
 GROUP BY g.fingerprint, h.hour
