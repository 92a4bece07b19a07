"""What ``examine`` finds where something is wrong, and that it keeps quiet where nothing is."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from pqrun import App, JobContext, PgJobStore
from pqrun import doctor as examining
from pqrun.doctor import Finding, examine
from pqrun.job.state import Status
from pqrun.store import inspecting
from pqrun.store.inspecting import Server
from tests.support.database import Databases, connected
from tests.support.pgbouncer import pgbouncer
from tests.support.rows import make_job


def of(findings: Sequence[Finding], check: str) -> list[Finding]:
    return [finding for finding in findings if finding.check == check]


def one(findings: Sequence[Finding], check: str) -> Finding:
    (found,) = of(findings, check)
    return found


async def insert_worker(connection: asyncpg.Connection, name: str, *, started: timedelta, types: list[str]) -> None:
    await connection.execute(
        "INSERT INTO pqrun.workers (worker_id, job_types, queues, hostname, pid, started_at, beat_at) "
        "VALUES ($1, $2, '{default}', 'host', 7, $3, clock_timestamp())",
        name,
        types,
        datetime.now(UTC) - started,
    )


async def test_where_nothing_is_wrong_everything_is_ok(store: PgJobStore) -> None:
    jobs = App(store=store)

    @jobs.task
    async def work(ctx: JobContext) -> None: ...

    async with jobs.worker().lifespan():
        findings = await examine(store)
    assert {finding.check for finding in findings if finding.level == "ok"} >= {
        "server",
        "clocks",
        "connections",
        "pooler",
        "listen",
        "snapshots",
        "schema",
        "rights",
        "vacuum",
        "workers",
        "unserved",
        "running",
    }
    # The server of the tests may run without fsync.
    assert [finding for finding in findings if finding.level != "ok" and finding.check != "durability"] == []
    assert all((finding.fix is None) is (finding.level == "ok") for finding in findings)


async def test_a_schema_that_is_missing_names_the_command(empty_dsn: str) -> None:
    async with PgJobStore(empty_dsn) as store:
        findings = await examine(store)
    found = one(findings, "schema")
    assert (found.level, found.fix) == ("problem", "run: pqrun migrate")
    assert findings[-1] is found  # nothing that needs the tables is asked for
    assert one(findings, "listen").level == "ok"


async def test_a_server_that_is_not_there_is_a_finding_without_the_password() -> None:
    async with PgJobStore("postgresql://app:geheim@127.0.0.1:1/shop") as store:
        (found,) = await examine(store)
    assert (found.check, found.level) == ("connection", "problem")
    assert "127.0.0.1:1" in found.found
    assert "geheim" not in f"{found}"


async def test_no_worker_is_a_problem_and_a_silent_one_is_named(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    assert one(await examine(store), "workers").found == "no worker is alive"
    await insert_worker(connection, "silent", started=timedelta(hours=1), types=["t"])
    await connection.execute("UPDATE pqrun.workers SET beat_at = clock_timestamp() - interval '5 minutes'")
    none, silent = of(await examine(store), "workers")
    assert none.level == "problem"
    assert silent.level == "warning"
    assert silent.found.startswith("worker silent (pid 7 on host) gave its last sign of life 5 min ago")


async def test_workers_with_old_code_are_found_by_what_they_do_not_know(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await connection.execute("UPDATE pqrun.migrations SET applied_at = clock_timestamp() - interval '1 day'")
    await insert_worker(connection, "old", started=timedelta(hours=9), types=["mail", "report", "__cleanup"])
    await insert_worker(connection, "new", started=timedelta(minutes=1), types=["mail", "report", "sync", "__cleanup"])
    await insert_worker(connection, "other", started=timedelta(hours=8), types=["video", "__cleanup"])
    found = one(await examine(store), "old code")
    assert found.found == "worker old (pid 7 on host) runs since 9 h and does not know what newer ones serve: sync"
    await connection.execute("DELETE FROM pqrun.workers WHERE worker_id <> 'old'")
    assert of(await examine(store), "old code") == []
    await connection.execute("UPDATE pqrun.migrations SET applied_at = clock_timestamp()")
    assert "since before the last migration" in one(await examine(store), "old code").found


async def test_workers_with_an_older_pqrun_than_others_are_found(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await connection.execute("UPDATE pqrun.migrations SET applied_at = clock_timestamp() - interval '1 day'")
    for name, version in (("a", "0.9.0"), ("b", "0.10.0"), ("c", "0.10.0rc1"), ("d", None), ("e", "strange")):
        await insert_worker(connection, name, started=timedelta(hours=1), types=[name])
        await connection.execute("UPDATE pqrun.workers SET version = $1 WHERE worker_id = $2", version, name)
    found = {finding.found.split()[1]: finding.found for finding in of(await examine(store), "old code")}
    assert sorted(found) == ["a", "c", "d"]
    assert found["a"].endswith("runs since 60 min with an older pqrun, 0.9.0; others have 0.10.0")
    assert "one that does not say its version; others have 0.10.0" in found["d"]
    await connection.execute("UPDATE pqrun.workers SET dead_at = clock_timestamp() WHERE worker_id = 'b'")
    assert {finding.found.split()[1] for finding in of(await examine(store), "old code")} == {"a", "d"}


async def test_what_waits_for_nobody_is_a_problem(store: PgJobStore, connection: asyncpg.Connection) -> None:
    await insert_worker(connection, "w", started=timedelta(hours=1), types=["t"])
    await store.enqueue("lost_[task]", {}, queue="mail")
    found = one(await examine(store), "unserved")
    assert (found.level, found.found) == (
        "problem",
        "lost_[task] waits in queue mail, and no living worker serves both",
    )


async def test_running_jobs_of_nobody_are_counted(store: PgJobStore, connection: asyncpg.Connection) -> None:
    first = await make_job(connection, status=Status.RUNNING)
    await make_job(connection, status=Status.RUNNING)
    found = one(await examine(store), "running")
    assert found.found == f"2 RUNNING jobs belong to no registered worker, {first} for one"


async def test_an_old_transaction_is_named_with_its_pid(
    store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "HOLDER_SECONDS", 0.0)
    async with connection.transaction(isolation="repeatable_read"):
        await connection.execute("SELECT count(*) FROM pqrun.jobs")
        pid = connection.get_server_pid()
        held = [found for found in of(await examine(store), "snapshots") if f"pid {pid}" in found.found]
    assert [found.level for found in held] == ["warning"]
    assert f"select pg_terminate_backend({pid})" in f"{held[0].fix}"
    assert not [found for found in of(await examine(store), "snapshots") if f"pid {pid}," in found.found]


async def test_a_table_that_autovacuum_leaves_alone_is_a_problem(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await connection.execute("ALTER TABLE pqrun.jobs_active SET (autovacuum_enabled = off)")
    try:
        found = one(await examine(store), "vacuum")
    finally:
        await connection.execute("ALTER TABLE pqrun.jobs_active RESET (autovacuum_enabled)")
    assert (found.level, found.fix) == ("problem", "alter table pqrun.jobs_active reset (autovacuum_enabled)")


async def test_dead_rows_that_outnumber_the_others_are_told(
    store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "DEAD_ROWS", 10)
    await connection.execute("ALTER TABLE pqrun.workers SET (autovacuum_enabled = off)")
    await connection.execute("INSERT INTO pqrun.workers (worker_id) SELECT 'w' FROM generate_series(1, 20)")
    await connection.execute("DELETE FROM pqrun.workers")
    await connection.execute("SELECT pg_stat_force_next_flush()")
    await connection.execute("ALTER TABLE pqrun.workers RESET (autovacuum_enabled)")
    found = one(await examine(store), "vacuum")
    assert found.found.startswith("pqrun.workers has 20 dead rows beside 0 (")
    assert found.level == "warning"


@asynccontextmanager
async def role(databases: Databases, dsn: str, grants: str) -> AsyncIterator[str]:
    """A DSN of a role that may do this much."""
    parts = urlsplit(dsn)
    name = "doctored_" + parts.path[1:]
    async with connected(dsn) as owner:
        await owner.execute(f"CREATE ROLE {name} LOGIN; {grants.format(role=name)}")
    yield urlunsplit(parts._replace(netloc=f"{name}@{parts.netloc.rpartition('@')[2]}"))
    async with connected(dsn) as owner:
        await owner.execute(f"DROP OWNED BY {name}")
    async with connected(databases.admin_dsn) as owner:
        await owner.execute(f"DROP ROLE {name}")


async def test_rights_that_a_worker_lacks_are_listed_with_the_grants(databases: Databases, dsn: str) -> None:
    most = (
        "GRANT USAGE ON SCHEMA pqrun TO {role}; GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA pqrun TO {role}; "
        "GRANT DELETE ON pqrun.jobs, pqrun.jobs_active TO {role}"
    )
    async with role(databases, dsn, most) as other, PgJobStore(other) as store:
        found = one(await examine(store), "rights")
    assert found.level == "warning"
    assert "usage on claims_id_seq" in found.found
    assert "grant usage, select on all sequences in schema pqrun to doctored_" in f"{found.fix}"
    async with role(databases, dsn, "") as other, PgJobStore(other) as store:
        refused = one(await examine(store), "schema")
    assert refused.level == "problem"


async def test_a_pooler_in_transaction_mode_is_told(dsn: str) -> None:
    async with pgbouncer(dsn) as started, PgJobStore(started.dsn) as store:
        findings = await examine(store)
    assert one(findings, "pooler").level == "warning"
    assert "direct_dsn=" in f"{one(findings, 'pooler').fix}"
    assert of(findings, "listen") == []
    assert one(findings, "schema").level == "ok"


async def test_times_connections_and_versions_are_judged(store: PgJobStore) -> None:
    server = await inspecting.inspect_server(store)

    def judged(**changes: object) -> dict[str, Finding]:
        changed = Server(**{**server._asdict(), **changes})
        return {finding.check: finding for finding in examining._of_server(changed, changed.clock + 90)}

    assert judged()["clocks"].found == "this host is 90 s ahead of the database, whose clock counts for jobs"
    assert judged(version="14.3", version_number=140003)["server"].level == "problem"
    assert judged(is_standby=True)["server"].level == "problem"
    assert judged(is_durable=False)["durability"].level == "warning"
    assert judged(max_connections=100, reserved_connections=3, connections=80)["connections"].level == "warning"
    assert judged(max_connections=100, reserved_connections=3, connections=97)["connections"].level == "problem"
    assert "the role's limit" in judged(role_limit=5, connections=1)["connections"].found
