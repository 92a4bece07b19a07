"""The database behind it: schema, sizes, vacuum, what holds it up; and the page of help."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import msgspec
from starlette.responses import Response

from pqrun.doctor import Finding, examine
from pqrun.job.moments import duration, duration_text
from pqrun.job.query import KEYS
from pqrun.job.record import NewJob
from pqrun.run.lowlevel import CLEANUP
from pqrun.run.maintain import AUDIT_SECONDS
from pqrun.store import acting
from pqrun.store.acting import Act, act
from pqrun.store.listing import LOOK_ROWS
from pqrun.store.migrate import migrations
from pqrun.store.pages import (
    STATEMENT_SECONDS,
    Database,
    IndexSize,
    TableSize,
    list_migrations,
    see_database,
    see_history,
    see_indexes,
    see_tables,
)
from pqrun.web.access import ACTIONS
from pqrun.web.operating import IDS_MAX
from pqrun.web.visit import PageError, Visit
from pqrun.worker_options import RETENTION_DEFAULT

__all__ = ["act_on_system", "database_warnings", "help_data", "package_version", "system_data"]

LONG_TRANSACTION_SECONDS: Final = 300.0
DEAD_LEAST: Final = 50_000
AGE_MOST: Final = 1_000_000_000
NOTIFY_MOST: Final = 0.5


def package_version() -> str:
    """Return the version of pqrun."""
    try:
        return version("pqrun")
    except PackageNotFoundError:  # run from a source tree
        return "not installed"


async def system_data(visit: Visit) -> Mapping[str, object]:
    """Everything that an operator would ask the database by hand. ``examine=1``: and all that ``pqrun doctor`` looks at.

    ``done=cleanup``: retention was asked for.
    """
    store = await visit.site.store()
    async with visit.reading() as session:
        database = await see_database(session)
        tables = await see_tables(session, store.schema)
        indexes = await see_indexes(session, store.schema)
        history = await see_history(session, RETENTION_DEFAULT.total_seconds())
        applied = await list_migrations(session)
    findings: Sequence[Finding] | None = await examine(store) if visit.query.get("examine") else None
    here = {one.version: one.name for one in migrations()}
    done = {one.version for one in applied}
    return {
        "database": database,
        "tables": tables,
        "migrations": applied,
        "missing": [f"{number:04} {name}" for number, name in here.items() if number not in done],
        "newer": [f"{one.version:04} {one.name}" for one in applied if one.version not in here],
        "indexes": indexes,
        "history": history,
        "retention": duration_text(RETENTION_DEFAULT),
        "findings": findings,
        "schema": store.schema,
        "warnings": [*database_warnings(database, tables), *_broken(indexes)],
        "version": package_version(),
        "settings": settings(visit),
    }


def settings(visit: Visit) -> dict[str, object]:
    """Return what these pages were told, without secrets."""
    rules = visit.site.rules
    authorize = rules.authorize
    return {
        "authorize": getattr(authorize, "__qualname__", type(authorize).__name__),
        "redact": "none" if rules.redact is None else "yes",
        "hide_payloads": "from viewers" if rules.hide_payloads else "no",
        "allow_actions": ", ".join(sorted(rules.allow_actions)) or "none",
        "origins": ", ".join(sorted(rules.origins)) or "none but their own",
        "longest_statement": f"{STATEMENT_SECONDS:g} s",
        "jobs_looked_at": f"{LOOK_ROWS:,} for a list",
        "jobs_of_an_operation": f"{IDS_MAX:,} at most",
        "audit_log": f"{AUDIT_SECONDS / 86_400:.0f} days, where workers have a retention",
        "you": f"{visit.access.user}, {visit.access.role.name.lower()}",
    }


def database_warnings(database: Database, tables: list[TableSize]) -> list[str]:
    """Say what needs somebody's attention."""
    found: list[str] = []
    longest = database.longest_seconds
    if longest is not None and longest > LONG_TRANSACTION_SECONDS:
        found.append(
            f"A transaction has been open for {longest / 60:,.0f} minutes (pid {database.longest_pid}, "
            f"{database.longest_application or 'no name'}, {database.longest_state or 'unknown'}): vacuum cannot remove what is newer."
        )
    if not database.autovacuum:
        found.append("autovacuum is off: dead rows stay.")
    if database.notify_usage > NOTIFY_MOST:
        found.append(
            f"The queue of notifications is {database.notify_usage:.0%} full: some session listens in a transaction that does not end."
        )
    for table in tables:
        if table.dead > max(DEAD_LEAST, table.live):
            found.append(f"{table.name}: {table.dead:,} dead rows to {table.live:,} living ones.")
        if table.age > AGE_MOST:
            found.append(f"{table.name}: not frozen for {table.age:,} transactions.")
    if database.connections > 0.9 * database.max_connections:
        found.append(f"{database.connections} of {database.max_connections} connections are in use.")
    return found


def _broken(indexes: Sequence[IndexSize]) -> list[str]:
    return [
        f"The index {one.name} is not valid: an attempt to build it was broken off. Run: reindex index concurrently {one.name}"
        for one in indexes
        if not one.is_valid
    ]


async def act_on_system(visit: Visit) -> Response:
    """Ask the workers for retention now: the job that every worker of the queue "default" serves, once at a time."""
    if visit.form.get("do") != "cleanup":
        raise PageError(400, "No such action", "Expected cleanup.")
    visit.must("cleanup")
    age = duration(visit.form.get("older"))
    if age is None or age < timedelta(0):
        raise PageError(422, "Not a duration", "older: expected a duration such as 12h or 7d.")
    payload = msgspec.json.encode({"older_than_seconds": age.total_seconds()}).decode()
    job = NewJob(job_type=CLEANUP, payload=payload, dedupe_key="cleanup")
    note = Act(visit.access.user, "cleanup", f"jobs that ended over {duration_text(age)} ago")
    did = await act(await visit.site.store(), note, lambda session: acting.enqueue(session, job))
    return visit.redirect(visit.url(f"/jobs/{did.made_id}", done="enqueue"))


KEYS_OF_PAGES: Final = (
    ("g then o", "overview"),
    ("g then j", "jobs"),
    ("g then q", "queues"),
    ("g then e", "errors"),
    ("g then t", "tasks"),
    ("g then s", "schedules"),
    ("g then w", "workers"),
    ("g then a", "operations and audit"),
    ("g then d", "system (database)"),
    ("/", "to the query box"),
    ("j, k", "next, previous row"),
    ("x", "tick the row"),
    ("Enter", "open the row"),
    ("r", "refresh"),
    ("p", "pause or resume live updates"),
    ("?", "this page"),
)


async def help_data(_visit: Visit) -> Mapping[str, object]:
    """Keys, states and the grammar of queries."""
    roles = {role: sorted(name for name, least in ACTIONS.items() if least == role) for role in set(ACTIONS.values())}
    return {
        "keys": KEYS_OF_PAGES,
        "grammar": KEYS,
        "roles": {role.name.lower(): names for role, names in sorted(roles.items())},
    }
