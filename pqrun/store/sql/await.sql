-- Tell the workers which jobs are waited for, so that the one that settles them announces it. $1 message text: "await:ID,ID,…"
SELECT pg_notify(/*$channel*/'pqrun', $1::text) IS NOT NULL AS told
