"""Statements broken on purpose, each in one way that a hurried change could bring about. None may survive the state machine."""

from typing import NamedTuple

__all__ = ["MUTANTS", "Mutant", "break_statement"]


class Mutant(NamedTuple):
    """A change of the text of one statement, rendered for the schema ``pqrun``; each old text occurs exactly once."""

    name: str
    statement: str
    changes: tuple[tuple[str, str], ...]


def break_statement(text: str, mutant: Mutant) -> str:
    """Return the broken text; AssertionError where the statement is no longer as the mutant knows it."""
    for old, new in mutant.changes:
        assert text.count(old) == 1, f"{mutant.name}: {text.count(old)} times in {mutant.statement}.sql: {old}"
        text = text.replace(old, new)
    return text


def _mutant(name: str, statement: str, *changes: tuple[str, str]) -> Mutant:
    return Mutant(name, statement, changes)


IS_READY = "a.status = 'READY' AND a.lost = 0 AND a.attempts < a.max_attempts"
FROM_GONE = "      FROM gone\n    RETURNING id\n"
KEY = "ON CONFLICT (job_type, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING"
KEY_CHANGED = KEY.replace("NOTHING", "UPDATE SET payload = excluded.payload")
OLD_ENOUGH = "f.finished_at < statement_timestamp() - $1::double precision * interval '1 second'"
TOO_LONG = "> a.timeout_seconds + $1::double precision"
NOBODYS = '   AND NOT EXISTS (SELECT FROM "pqrun".workers w WHERE w.id = a.worker)\n'
EMPTY_GRAVE = "\n   AND NOT EXISTS (SELECT FROM \"pqrun\".jobs_active a WHERE a.status = 'RUNNING' AND a.worker = w.id)"
FREE_LEFT = "a.attempts < a.max_attempts FOR UPDATE SKIP LOCKED"
FENCED = "a.id = u.id AND a.claim_id IS NOT DISTINCT FROM u.claim_id"
ADDED_ATTEMPTS = "attempts = a.attempts + coalesce(h.attempts, 0)"
RETRY_ATTEMPTS = (
    ("(id, place, run_after, created_at, timeout_seconds, max", "(attempts, id, place, run_after, created_at, timeout_seconds, max"),
    ("SELECT id, nextval(", "SELECT attempts, id, nextval("),
)  # fmt: skip

MUTANTS = (
    # What a worker writes about its claims.
    _mutant("an end without a fence", "settle", (f"u.is_end AND {FENCED}", "u.is_end AND a.id = u.id")),
    _mutant("a release without a fence", "settle", (f"WHERE {FENCED}", "WHERE a.id = u.id")),
    _mutant("an end that ignores a cancel request", "settle", ("RETURNING a.cancel_requested_at IS NOT NULL AS", "RETURNING false AS")),
    _mutant("a release that ignores a cancel request", "settle", ("SELECT a.cancel_requested_at IS NOT NULL AS", "SELECT false AS")),
    _mutant("a release that counts", "settle", (ADDED_ATTEMPTS, "attempts = a.attempts")),
    _mutant(
        "a recovery that does not count",
        "settle",
        (ADDED_ATTEMPTS, "attempts = a.attempts + CASE WHEN h.lost > 0 THEN -1 ELSE coalesce(h.attempts, 0) END"),
    ),
    _mutant("a recovery that is not remembered", "settle", ("lost = a.lost + coalesce(h.lost, 0)", "lost = a.lost")),
    _mutant("a last loss that is not remembered", "settle", ("lost + coalesce(more_lost, 0)", "lost")),
    _mutant("an end that forgets the error before", "settle", ("payload, coalesce(new_error, last_error)", "payload, new_error")),
    _mutant("a delay that is not written", "settle", ("h.delay_seconds * interval '1 second'", "interval '0'")),
    _mutant("a snooze that is not remembered", "settle", ("snoozes = a.snoozes + coalesce(h.snoozes, 0)", "snoozes = a.snoozes")),
    _mutant("an end that forgets snoozes", "settle", ("snoozes, priority, queue, job_type, CASE", "0, priority, queue, job_type, CASE")),
    _mutant("a success without a fence", "settle_done", (" AND a.claim_id IS NOT DISTINCT FROM u.claim_id", "")),
    _mutant("a success that ignores a cancel request", "settle_done", (" AND a.cancel_requested_at IS NULL", "")),
    _mutant("an attempt at its end that is not kept", "settle", ("ELSE kind <> 'unstarted' END", "ELSE false END")),
    _mutant("an attempt before another that is not kept", "settle", ("\n     WHERE kind <> 'unstarted'", "\n     WHERE false")),
    _mutant("an attempt that was cancelled and is not kept", "settle", ("kind IS DISTINCT FROM 'unstarted'", "kind <> 'unstarted'")),
    _mutant("an attempt that was none and is kept", "settle", ("kind IS DISTINCT FROM 'unstarted'", "true")),
    _mutant("an attempt with the next one's number", "settle", ("a.attempts AS number, a.job", "a.attempts + 1 AS number, a.job")),
    _mutant("attempts trimmed too early", "settle", ("OFFSET $17::integer - 1", "OFFSET 1")),
    _mutant("a renewal without a fence", "renew", (" AND a.claim_id = u.claim_id", "")),
    _mutant("an end told to whoever asks", "find_claim", (" AND f.claim_id = $2::bigint", " AND $2::bigint > 0")),
    _mutant("a report without a fence", "report_progress", ("u.id AND a.claim_id = u.claim_id AND a.locked_at", "u.id AND a.locked_at")),
    _mutant("a report that waits for locked rows", "report_progress", ("FOR SHARE SKIP LOCKED", "FOR SHARE")),
    _mutant("a report that replaces none", "report_progress", ("value = excluded.value", "value = p.value")),
    _mutant("a report under an old name", "report_progress", ("SET claim_id = excluded.claim_id, ", "SET ")),
    _mutant("a report that forgets who was locked", "report_progress", (" WHERE (SELECT count(*) FROM written) <", " WHERE (SELECT 0) >")),
    # Claims.
    _mutant("a claim that locks nothing", "claim", (FREE_LEFT, "a.attempts < a.max_attempts")),
    _mutant("a claim that waits for locked rows", "claim", (FREE_LEFT, "a.attempts < a.max_attempts FOR UPDATE")),
    _mutant(
        "a claim that takes RUNNING jobs",
        "claim",
        ("WHERE a.status = 'READY' AND", "WHERE a.status IN ('READY', 'RUNNING') AND"),
        (IS_READY, "a.status IN ('READY', 'RUNNING')"),
    ),
    _mutant("a claim without a fresh number", "claim", ("nextval('\"pqrun\".claims_id_seq')", "a.id")),
    _mutant("a claim that does not count", "claim", ("attempts = a.attempts + 1", "attempts = a.attempts")),
    _mutant("a claim for a dead worker", "claim", (" AND w.dead_at IS NULL", "")),
    _mutant("a prefetch of a job with one attempt", "claim", ("(r.max_attempts = 1 OR NOT r.proven)", "NOT r.proven")),
    _mutant("a claim that skips the first row", "claim", ("a.place > lane.cursor\n", "a.place > lane.cursor + 1\n")),
    _mutant("a suspect claimed by a dead worker", "claim_suspect", (" AND w.dead_at IS NULL", "")),
    _mutant("a look for forgotten claims that takes the known", "find_forgotten", ("a.claim_id <> ALL (", "a.id <> ALL (")),
    _mutant("a look for other workers' forgotten claims", "find_forgotten", ("a.worker = $1::bigint AND ", "$1::bigint > 0 AND ")),
    _mutant("a promotion before its time", "promote", (" AND a.run_after <= statement_timestamp()", "")),
    _mutant("a promotion into an old place", "promote", ("place = p.place, ", "")),
    # By hand.
    _mutant("a cancel without a guard of the state", "cancel", ("a.locked_at IS NOT NULL AS is_running", "false AS is_running")),
    _mutant("a cancel that forgets the snoozes", "cancel", ("snoozes, priority, queue, job_type, 'C", "0, priority, queue, job_type, 'C")),
    _mutant("a cancel that only deletes", "cancel", (FROM_GONE, FROM_GONE.replace("gone", "gone WHERE false"))),
    _mutant("a cancel that waits for locked rows", "cancel", ("FOR UPDATE SKIP LOCKED", "FOR UPDATE")),
    _mutant("a retry that deletes what it did not insert", "retry", ("f USING moved m", "f USING source m")),
    _mutant("a retry that inserts without deleting", "retry", ("WHERE f.id = m.id", "WHERE f.id = m.id AND f.id < 0")),
    _mutant("a retry that keeps the attempts", "retry", *RETRY_ATTEMPTS),
    _mutant("a retry of what is DONE", "retry", ("(f.status <> 'DONE' OR $2::boolean)", "(true OR $2::boolean)")),
    _mutant("a retry that keeps the report", "retry", ("WHERE p.job_id = m.id", "WHERE p.job_id = m.id AND false")),
    _mutant("a retry into the old place", "retry", ("nextval('\"pqrun\".jobs_place_seq')", "place")),
    # Producers.
    _mutant("an enqueue that does not expect a duplicate", "enqueue", (KEY, "")),
    _mutant("an enqueue that changes the duplicate", "enqueue", (KEY, KEY_CHANGED)),
    _mutant("an enqueue of one that does not expect a duplicate", "enqueue_one", (KEY, "")),
    _mutant("an enqueue of one that changes the duplicate", "enqueue_one", (KEY, KEY_CHANGED)),
    _mutant("a search for a key that forgets the type", "find_active", ("a.job_type = u.job_type AND ", "")),
    # Registry, reaper, retention.
    _mutant("a burial without a look at the beat", "bury", (" AND w.beat = u.beat", "")),
    _mutant("a beat of the dead", "beat", ("WHERE id = $1::bigint AND dead_at IS NULL RETURNING", "WHERE id = $1::bigint RETURNING")),
    _mutant("a reaper of the living", "find_lost", ("w.dead_at IS NOT NULL AND ", "")),
    _mutant("a reaper of other workers' long jobs", "find_orphans", (NOBODYS, "")),
    _mutant("a reaper that calls everything overdue", "find_overdue", (TOO_LONG, TOO_LONG.replace("a.timeout_seconds +", "0 *"))),
    _mutant("a grave forgotten with a job in it", "forget_workers", (EMPTY_GRAVE, "")),
    _mutant("a pruner of what is young", "prune", (OLD_ENOUGH, "$1::double precision > 0")),
    _mutant("a pruner that leaves reports", "prune", ("WHERE p.job_id = g.id", "WHERE p.job_id = g.id AND false")),
    _mutant("a pruner that leaves attempts", "prune", ("WHERE a.job_id = g.id", "WHERE a.job_id = g.id AND g.id < 0")),
    _mutant("a pruner that counts but keeps", "prune", ("WHERE f.id = o.id", "WHERE f.id = o.id AND f.id < 0")),
)  # fmt: skip
