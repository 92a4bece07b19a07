"""``examine``: whether server, schema, rights, clocks, connections, vacuum and workers are as a queue needs them, and the fix where not.

Each question is asked by itself: one that cannot be answered says so, and the others go on. Nothing is written.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from pqrun.errors import DatabaseUnavailableError, PqrunError, SchemaError, StoreError
from pqrun.job.release import newest_release
from pqrun.job.storable import one_line
from pqrun.store import PgJobStore, inspecting
from pqrun.store.inspecting import Holder, KnownWorker, MissingRight, Server, Strays, TableState

__all__ = ["Finding", "Level", "examine"]

Level: TypeAlias = Literal["ok", "warning", "problem"]
"""Of a finding: as it should be; worth a look; jobs do not run, or will not for long."""

OLDEST_SERVER: Final = 150000

SKEW_SECONDS: Final = 1.0
"""Further apart, times that a client computes (``run_after=datetime.now(UTC) + …``) are noticeably off."""

HEADROOM_SHARE: Final = 0.8
"""Of the connections: above, the next worker or web process may find none."""

HOLDER_SECONDS: Final = 300.0
"""So old a transaction keeps dead rows that a busy queue would like to be rid of."""

HOLDER_TRANSACTIONS: Final = 1_000_000
"""The same for those of whom no time is known: slots and standbys."""

HOLDERS_SHOWN: Final = 3

DEAD_ROWS: Final = 50_000
"""Fewer are no matter, whatever their share."""

STALE_SECONDS: Final = 10.0
"""A worker that beats once a second and has not for so long is dead or cut off."""

STRAYS_LIMIT: Final = 1_000

KINDS: Final[Mapping[str, str]] = {
    "session": "the transaction of {who} ({detail}) is open since {age}",
    "prepared": "a prepared transaction of {who} ({detail}) is open since {age}",
    "slot": "the replication slot {who} ({detail}) is {transactions:,} transactions behind",
    "standby": "a standby's query, {who} ({detail}), is {transactions:,} transactions behind",
}

CURES: Final[Mapping[str, str]] = {
    "session": "end it there, or: select pg_terminate_backend({pid}); set idle_in_transaction_session_timeout for its role",
    "prepared": "commit prepared, or rollback prepared, by its name",
    "slot": "bring its consumer back, or: select pg_drop_replication_slot('{who}')",
    "standby": "end the long query on the standby, or switch hot_standby_feedback off there",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at: what it is about, how it is, what was found, and what to do about it (None: nothing)."""

    check: str
    level: Level
    found: str
    fix: str | None = None


_Question: TypeAlias = Callable[[PgJobStore, Server], Awaitable[Sequence[Finding]]]


async def examine(store: PgJobStore) -> list[Finding]:
    """Look at everything, in some ten short statements; ``store`` is open, its schema may be missing.

    What the database refuses, or does not answer within some seconds, becomes a finding. Raises NotOpenError.
    """
    before = time.time()
    try:
        server = await inspecting.inspect_server(store)
    except StoreError as error:
        return [Finding(check="connection", level="problem", found=_said(error), fix=_reach(error))]
    findings = _of_server(server, (before + time.time()) / 2)
    findings += await _ask("pooler", _connections, store, server)
    findings += await _ask("snapshots", _snapshots, store, server)
    try:
        await store.check_schema()
    except SchemaError as error:
        return [*findings, Finding(check="schema", level="problem", found=_said(error), fix="run: pqrun migrate")]
    except StoreError as error:
        fix = f"as its owner: grant usage on schema {store.schema} to {server.role}, and select on its tables"
        return [*findings, Finding(check="schema", level="problem", found=_said(error), fix=fix)]
    findings.append(Finding(check="schema", level="ok", found=f"{store.schema!r} is as this version of pqrun needs it"))
    for name, question in _QUESTIONS.items():
        findings += await _ask(name, question, store, server)
    return findings


async def _ask(name: str, question: _Question, store: PgJobStore, server: Server) -> Sequence[Finding]:
    try:
        return await question(store, server)
    except PqrunError as error:
        found = f"could not be looked at: {_said(error)}"
        return [Finding(check=name, level="warning", found=found, fix="look again with a role that may see it")]


def _said(error: Exception) -> str:
    return one_line(str(error))


def _reach(error: StoreError) -> str:
    if isinstance(error, DatabaseUnavailableError):
        return (
            "check host, port and password of the DSN, that the server runs, and that its pg_hba.conf lets this host in"
        )
    return "give this role the right to connect, and to read pg_catalog"


def _of_server(server: Server, clock: float) -> list[Finding]:
    ours = Finding(check="server", level="ok", found=f"PostgreSQL {server.version}, as {server.role}")
    if server.version_number < OLDEST_SERVER:
        fix = "upgrade the server to PostgreSQL 15 or newer"
        ours = Finding(
            check="server", level="problem", found=f"PostgreSQL {server.version} is too old for pqrun", fix=fix
        )
    elif server.is_standby:
        fix = "name all hosts in the DSN, postgresql://app@db-1,db-2/shop: pqrun then finds the primary"
        ours = Finding(check="server", level="problem", found="this is a standby: it only reads", fix=fix)
    found = [ours, _of_clocks(clock - server.clock), _of_headroom(server)]
    if not server.is_durable:
        fix = "set fsync = on, unless this is a database for tests"
        found.append(Finding(check="durability", level="warning", found="fsync is off: a crash can lose jobs", fix=fix))
    return found


def _of_clocks(ahead: float) -> Finding:
    if abs(ahead) <= SKEW_SECONDS:
        return Finding(check="clocks", level="ok", found="this host and the database agree within a second")
    where = "ahead of" if ahead > 0 else "behind"
    return Finding(
        check="clocks",
        level="warning",
        found=f"this host is {_span(abs(ahead))} {where} the database, whose clock counts for jobs",
        fix="run a time service on both; until then give run_after= a timedelta, which the database adds up",
    )


def _of_headroom(server: Server) -> Finding:
    limits = {"max_connections": server.max_connections - server.reserved_connections}
    limits |= {
        name: n
        for name, n in (("the role's limit", server.role_limit), ("the database's limit", server.database_limit))
        if n >= 0
    }
    name, limit = min(limits.items(), key=lambda item: item[1])
    found = f"{server.connections} connections, {limit} allowed by {name}"
    if server.connections < HEADROOM_SHARE * limit:
        return Finding(check="connections", level="ok", found=found)
    fix = "raise the limit, lower the number of processes, or put PgBouncer in between; a worker keeps four, a producer one"
    level: Level = "problem" if server.connections >= limit else "warning"
    return Finding(check="connections", level=level, found=found, fix=fix)


async def _connections(store: PgJobStore, _server: Server) -> Sequence[Finding]:
    if await inspecting.is_pooled(store):
        fix = "give workers direct_dsn=, a DSN of PostgreSQL itself: they hear of jobs at once then, and are missed after 3 s instead of 30"
        found = "connections lead through a pooler in transaction mode: workers poll"
        return [Finding(check="pooler", level="warning", found=found, fix=fix)]
    pooler = Finding(check="pooler", level="ok", found="connections lead to PostgreSQL itself")
    if await inspecting.hears_notifications(store):
        return [pooler, Finding(check="listen", level="ok", found="notifications arrive")]
    fix = "is something between here and the server? Without notifications an idle worker finds a job up to 10 s late"
    return [pooler, Finding(check="listen", level="warning", found="a notification did not arrive within 2 s", fix=fix)]


async def _snapshots(store: PgJobStore, _server: Server) -> Sequence[Finding]:
    holders = await inspecting.inspect_snapshots(store, seconds=HOLDER_SECONDS, limit=HOLDERS_SHOWN)
    old = [holder for holder in holders if holder.seconds is not None or holder.transactions >= HOLDER_TRANSACTIONS]
    if not old:
        return [Finding(check="snapshots", level="ok", found="no transaction older than 5 min keeps dead rows")]
    return [_of_holder(holder) for holder in old]


def _of_holder(holder: Holder) -> Finding:
    age = None if holder.seconds is None else f"{_span(holder.seconds)} ago"
    pid = holder.detail.partition(",")[0].removeprefix("pid ")
    return Finding(
        check="snapshots",
        level="warning",
        found=KINDS[holder.kind].format(
            who=one_line(holder.who), detail=one_line(holder.detail), age=age, transactions=holder.transactions
        )
        + ": rows that are dead since then cannot be removed",
        fix=CURES[holder.kind].format(pid=pid, who=one_line(holder.who)),
    )


async def _rights(store: PgJobStore, server: Server) -> Sequence[Finding]:
    missing = await inspecting.inspect_rights(store)
    if not missing:
        return [Finding(check="rights", level="ok", found=f"{server.role} may do what a worker does")]
    fix = (
        f"for a worker, as the owner: grant select, insert, update, delete on all tables in schema {store.schema} to {server.role}; "
        f"grant usage, select on all sequences in schema {store.schema} to {server.role}; a producer needs less: docs/sql.md"
    )
    return [Finding(check="rights", level="warning", found=f"{server.role} may not: {_listed(missing)}", fix=fix)]


def _listed(missing: Sequence[MissingRight]) -> str:
    names = [f"{right.privilege} on {right.name}" for right in missing]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


async def _tables(store: PgJobStore, server: Server) -> Sequence[Finding]:
    if not (server.has_autovacuum and server.has_counts):
        fix = "set autovacuum = on and track_counts = on"
        return [
            Finding(
                check="vacuum",
                level="problem",
                found="autovacuum is off for the whole server: tables only grow",
                fix=fix,
            )
        ]
    tables = await inspecting.inspect_tables(store)
    bloated = [finding for table in tables for finding in _of_table(table, store.schema)]
    if bloated:
        return bloated
    size = _size(sum(table.bytes for table in tables))
    return [Finding(check="vacuum", level="ok", found=f"{len(tables)} tables, {size}, dead rows are removed in time")]


def _of_table(table: TableState, schema: str) -> list[Finding]:
    name = f"{schema}.{table.name}"
    if table.is_left_alone:
        fix = f"alter table {name} reset (autovacuum_enabled)"
        return [Finding(check="vacuum", level="problem", found=f"autovacuum is off for {name}: it only grows", fix=fix)]
    if table.dead_rows < max(DEAD_ROWS, table.live_rows):
        return []
    since = "never" if table.vacuumed_seconds is None else f"{_span(table.vacuumed_seconds)} ago"
    found = (
        f"{name} has {table.dead_rows:,} dead rows beside {table.live_rows:,} ({_size(table.bytes)}); vacuumed {since}"
    )
    fix = f"vacuum {name}; where that removes little, see snapshots; at thousands of jobs a second set autovacuum_naptime = 10s"
    return [Finding(check="vacuum", level="warning", found=found, fix=fix)]


async def _workers(store: PgJobStore, _server: Server) -> Sequence[Finding]:
    workers = await inspecting.inspect_workers(store)
    alive = [worker for worker in workers if not worker.is_dead and worker.beat_seconds < STALE_SECONDS]
    findings: list[Finding] = []
    if not alive:
        findings.append(
            Finding(
                check="workers", level="problem", found="no worker is alive", fix="start one: pqrun worker module:app"
            )
        )
    else:
        findings.append(Finding(check="workers", level="ok", found=f"{len(alive)} alive"))
    stale = [worker for worker in workers if not worker.is_dead and worker.beat_seconds >= STALE_SECONDS]
    findings += [_of_stale(worker, is_alone=not alive) for worker in stale]
    return [*findings, *_of_old_code(alive)]


def _of_stale(worker: KnownWorker, *, is_alone: bool) -> Finding:
    found = f"worker {_named(worker)} gave its last sign of life {_span(worker.beat_seconds)} ago"
    fix = (
        "its jobs are recovered when another worker runs: start one"
        if is_alone
        else "is its process stopped, or its network cut? Its jobs go to others"
    )
    return Finding(check="workers", level="warning", found=found, fix=fix)


def _of_old_code(alive: Sequence[KnownWorker]) -> list[Finding]:
    """Workers whose process runs the code of before: they know less than a later one beside the same queues, or have an older pqrun."""
    findings = []
    for worker in alive:
        later = [w for w in alive if w.started_seconds < worker.started_seconds and _serve_alike(w, worker)]
        unknown = sorted({name for other in later for name in other.job_types} - set(worker.job_types))
        since = f"runs since {_span(worker.started_seconds)}"
        if unknown:
            names = ", ".join(one_line(name) for name in unknown[:5])
            found = f"worker {_named(worker)} {since} and does not know what newer ones serve: {names}"
        elif (newer := _newer_version(worker, alive)) is not None:
            ours = "one that does not say its version" if worker.version is None else one_line(worker.version)
            found = f"worker {_named(worker)} {since} with an older pqrun, {ours}; others have {one_line(newer)}"
        elif worker.is_older_than_schema:
            found = f"worker {_named(worker)} {since}, since before the last migration"
        else:
            continue
        fix = "restart it with the code of now; until then newer workers run what it does not know"
        findings.append(Finding(check="old code", level="warning", found=found, fix=fix))
    return findings


def _newer_version(worker: KnownWorker, alive: Sequence[KnownWorker]) -> str | None:
    """The newest pqrun among the living, if this worker's is older."""
    newest = newest_release([worker.version, *(other.version for other in alive)])
    return None if newest == worker.version else newest


def _serve_alike(one: KnownWorker, other: KnownWorker) -> bool:
    """Whether they are of one kind: the same queues, and more than half of the tasks in common."""
    common = set(one.job_types) & set(other.job_types)
    return one.queues == other.queues and 2 * len(common) > min(len(one.job_types), len(other.job_types)) + 1


def _named(worker: KnownWorker) -> str:
    return one_line(f"{worker.worker_id} (pid {worker.pid} on {worker.hostname})")


async def _unserved(store: PgJobStore, _server: Server) -> Sequence[Finding]:
    waiting = await inspecting.inspect_unserved(store)
    if not waiting:
        return [Finding(check="unserved", level="ok", found="every task that waits is served by a living worker")]
    return [
        Finding(
            check="unserved",
            level="problem",
            found=one_line(f"{job_type} waits in queue {queue}, and no living worker serves both"),
            fix="start a worker whose app has this task and that serves this queue (--queues), or move or cancel the jobs",
        )
        for queue, job_type in waiting
    ]


async def _strays(store: PgJobStore, _server: Server) -> Sequence[Finding]:
    return _of_strays(await inspecting.inspect_strays(store, limit=STRAYS_LIMIT))


def _of_strays(strays: Strays) -> Sequence[Finding]:
    if not strays.jobs:
        return [Finding(check="running", level="ok", found="every running job belongs to a registered worker")]
    count = f"{strays.jobs:,}" if strays.jobs < STRAYS_LIMIT else f"{strays.jobs:,} or more"
    found = f"{count} RUNNING jobs belong to no registered worker, {strays.first_id} for one"
    fix = "a worker with enable_reaper takes them back after their timeout, or 20 min (default_stale_after); were they written by hand?"
    return [Finding(check="running", level="warning", found=found, fix=fix)]


def _span(seconds: float) -> str:
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1_024:
            return f"{count:.0f} {unit}"
        count /= 1_024
    return f"{count:.1f} GB"


_QUESTIONS: Final[Mapping[str, _Question]] = {
    "rights": _rights,
    "vacuum": _tables,
    "workers": _workers,
    "unserved": _unserved,
    "running": _strays,
}
