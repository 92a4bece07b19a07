"""Migrations: any number at once, each recorded once, never everybody behind a long reader."""

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from pqrun.errors import NotOpenError, SchemaError, StoreError
from pqrun.job.record import NewJob
from pqrun.store import PgJobStore
from pqrun.store import migrate as migrating
from pqrun.store.keeping import KeptRegistry
from pqrun.store.maintaining import reap_lost
from pqrun.store.migrate import Migration, check_schema, migrate, migration_sql, migrations
from tests.store.listening import hearing
from tests.support.database import Databases, connected
from tests.support.waiting import wait_until

ROUNDS = 3
PROCESSES = 5

MIGRATE_WHEN_TOLD = """
import asyncio, sys
from pqrun.store import PgJobStore

async def main() -> None:
    store = PgJobStore(sys.argv[1])
    for _ in range(int(sys.argv[2])):
        print("ready", flush=True)
        dsn = sys.stdin.readline().strip()
        applied = await PgJobStore(dsn).migrate()
        print(len(applied), flush=True)

asyncio.run(main())
"""

CATALOG = """
SELECT 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull::text, pg_get_expr(d.adbin, d.adrelid)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum WHERE n.nspname = $1
UNION ALL
SELECT 'relation', c.relname, c.relkind::text, array_to_string(c.reloptions, ','), pg_get_expr(c.relpartbound, c.oid), NULL
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1
UNION ALL
SELECT 'constraint', r.conrelid::regclass::text, r.conname, pg_get_constraintdef(r.oid), r.convalidated::text, NULL
  FROM pg_constraint r JOIN pg_namespace n ON n.oid = r.connamespace WHERE n.nspname = $1
UNION ALL
SELECT 'index', tablename, indexname, indexdef, NULL, NULL FROM pg_indexes WHERE schemaname = $1
UNION ALL
SELECT 'function', p.proname, pg_get_function_identity_arguments(p.oid), pg_get_functiondef(p.oid), NULL, NULL
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = $1
ORDER BY 1, 2, 3, 4, 5, 6
"""
"""Everything that a migration makes, as PostgreSQL itself writes it down."""


async def catalog(connection: asyncpg.Connection, schema: str = "pqrun") -> list[tuple[object, ...]]:
    await connection.execute("SET search_path = pg_catalog")  # so that every name is written with its schema
    return [tuple(row) for row in await connection.fetch(CATALOG, schema)]


async def recorded(connection: asyncpg.Connection) -> list[tuple[int, str]]:
    rows = await connection.fetch("SELECT version, checksum FROM pqrun.migrations ORDER BY version")
    return [(row["version"], row["checksum"]) for row in rows]


async def expect_line(process: asyncio.subprocess.Process, expected: bytes) -> None:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 30)
    assert line == expected


async def test_five_processes_that_migrate_at_once_all_succeed(databases: Databases) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", MIGRATE_WHEN_TOLD, databases.admin_dsn, str(ROUNDS)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(PROCESSES)
    ]
    for _ in range(ROUNDS):
        dsn = await databases.clone(migrated=False)
        await asyncio.gather(*(expect_line(process, b"ready\n") for process in processes))
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"{dsn}\n".encode())
        lines = [
            await asyncio.wait_for(process.stdout.readline(), 30) for process in processes if process.stdout is not None
        ]
        assert sorted(lines) == [b"0\n"] * (PROCESSES - 1) + [b"%d\n" % len(migrations())]
        async with connected(dsn) as connection:
            assert await recorded(connection) == [(m.version, m.checksum) for m in migrations()]
        await databases.drop(dsn)
    for process in processes:
        await process.communicate()
    assert [process.returncode for process in processes] == [0] * PROCESSES


async def test_many_of_one_process_may_migrate_at_once(empty_dsn: str) -> None:
    applied = await asyncio.gather(*(PgJobStore(empty_dsn).migrate() for _ in range(5)))
    assert sorted(map(len, applied)) == [0, 0, 0, 0, len(migrations())]


async def test_a_second_call_applies_nothing_and_issues_no_ddl(dsn: str, connection: asyncpg.Connection) -> None:
    await connection.execute("""
        CREATE TABLE ddl (tag text);
        CREATE FUNCTION note_ddl() RETURNS event_trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO public.ddl VALUES (tg_tag); END $$;
        CREATE EVENT TRIGGER note_ddl ON ddl_command_start EXECUTE FUNCTION note_ddl();
    """)
    assert await PgJobStore(dsn).migrate() == []
    async with PgJobStore(dsn) as store:
        await store.check_schema()
        await store.enqueue("t", {})
    assert await connection.fetchval("SELECT count(*) FROM ddl") == 0
    await connection.execute("CREATE TABLE seen ()")
    assert await connection.fetchval("SELECT count(*) FROM ddl") == 1  # the trigger does see DDL


async def test_another_text_of_the_same_version_is_refused(dsn: str, connection: asyncpg.Connection) -> None:
    await connection.execute("UPDATE pqrun.migrations SET checksum = 'ab' WHERE version = 1")
    with pytest.raises(SchemaError, match="0001 jobs was applied from another text"):
        await PgJobStore(dsn).migrate()


async def test_the_schema_of_a_newer_version_is_left_alone_and_served(dsn: str, connection: asyncpg.Connection) -> None:
    await connection.execute("INSERT INTO pqrun.migrations (version, name, checksum) VALUES (9999, 'later', 'x')")
    assert await PgJobStore(dsn).migrate() == []
    await check_schema(connection, "pqrun")


async def test_a_missing_schema_names_the_command(empty_dsn: str) -> None:
    async with PgJobStore(empty_dsn) as store:
        with pytest.raises(SchemaError, match=r"does not exist in this database; run: pqrun migrate$"):
            await store.check_schema()
        with pytest.raises(SchemaError, match="run: pqrun migrate"):
            await store.enqueue("t", {})
    async with PgJobStore(empty_dsn, schema="my jobs") as store:
        with pytest.raises(SchemaError, match=r"run: pqrun migrate --schema 'my jobs'$"):
            await store.check_schema()


async def test_an_older_schema_names_the_command_and_what_is_missing(connection: asyncpg.Connection) -> None:
    await connection.execute("DELETE FROM pqrun.migrations")
    with pytest.raises(SchemaError, match=r"is older than this code: \d+ migration.* 0001 jobs; run: pqrun migrate$"):
        await check_schema(connection, "pqrun")


async def test_the_script_makes_the_same_schema(connection: asyncpg.Connection, empty_dsn: str) -> None:
    async with connected(empty_dsn) as by_script:
        await by_script.execute(migration_sql("pqrun"))
        assert await catalog(by_script) == await catalog(connection)
        assert await recorded(by_script) == await recorded(connection)
        assert await migrate(by_script, "pqrun") == []


async def test_the_script_makes_the_same_under_another_name(connection: asyncpg.Connection) -> None:
    await connection.execute(migration_sql("elsewhere"))
    renamed = [
        tuple(value.replace("elsewhere", "pqrun") if isinstance(value, str) else value for value in row)
        for row in await catalog(connection, "elsewhere")
    ]
    assert renamed == await catalog(connection)


async def test_the_script_is_valid_for_an_awkward_name(connection: asyncpg.Connection) -> None:
    name = "x\"y'z; --\\"
    await connection.execute(migration_sql(name))
    await check_schema(connection, name)
    assert len(await catalog(connection, name)) == len(await catalog(connection))


async def test_migrate_works_through_a_handed_in_pool_before_start(empty_dsn: str) -> None:
    async with asyncpg.create_pool(empty_dsn, min_size=0, max_size=1) as pool:
        store = PgJobStore(pool=pool)
        assert [m.version for m in await store.migrate()] == [m.version for m in migrations()]
        with pytest.raises(NotOpenError):
            await store.get(1)
        async with store:
            assert await store.enqueue("t", {}) == 1
            assert await store.migrate() == []
        assert not pool.is_closing()


def test_checksums_do_not_depend_on_the_name_of_the_schema() -> None:
    first = migrations()[0]
    assert first.checksum == hashlib.sha256(first.template.encode()).hexdigest()
    versions = [m.version for m in migrations()]
    assert versions == sorted(set(versions))


@asynccontextmanager
async def reading(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A report that goes on and on: holds a lock that any ALTER TABLE must wait for."""
    async with connected(dsn) as connection, connection.transaction():
        await connection.fetch("SELECT FROM pqrun.jobs")
        yield connection


async def test_a_long_reader_does_not_make_everybody_queue_behind_the_migration(
    store: PgJobStore, dsn: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Migration(
        migrations()[-1].version + 1, "later", "ALTER TABLE /*$schema*/pqrun.jobs ADD COLUMN later integer"
    )
    known = migrations()
    monkeypatch.setattr(migrating, "migrations", lambda: (*known, later))

    async def is_migration_waiting() -> bool:
        query = """SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity s ON s.pid = l.pid
                    WHERE NOT l.granted AND s.datname = current_database() AND s.application_name = 'pqrun migrate')"""
        return bool(await connection.fetchval(query))

    async with reading(dsn):
        task = asyncio.create_task(store.migrate())
        await wait_until(is_migration_waiting)
        job_id = await store.enqueue("t", {})  # queues behind the ALTER TABLE until that gives way
        assert (await store.cancel(job_id)) == "CANCELLED"
        await wait_until(is_migration_waiting)  # and the migration asks again
        assert not task.done()
    assert [m.version for m in await task] == [later.version]
    assert (await store.get(job_id)) is not None
    await store.enqueue("t", {})


async def test_a_schema_that_stays_locked_is_told(dsn: str, store: PgJobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    later = Migration(
        migrations()[-1].version + 1, "later", "ALTER TABLE /*$schema*/pqrun.jobs ADD COLUMN later integer"
    )
    known = migrations()
    monkeypatch.setattr(migrating, "migrations", lambda: (*known, later))
    monkeypatch.setattr(migrating, "LOCK_TRIES", 1)
    async with reading(dsn):
        with pytest.raises(SchemaError, match="stayed locked by other transactions; try again"):
            await store.migrate()


async def test_another_process_that_never_ends_its_migration_is_not_waited_for_for_ever_on_a_handed_in_pool(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrating, "LOCK_TRIES", 1)
    async with connected(dsn) as other, other.transaction(), asyncpg.create_pool(dsn, min_size=0, max_size=4) as pool:
        await other.execute("SELECT pg_advisory_xact_lock(hashtext($1), 1)", "pqrun:migrate:pqrun")
        with pytest.raises(SchemaError, match="stayed locked by other transactions; try again"):
            await asyncio.wait_for(PgJobStore(pool=pool).migrate(), 30)


async def test_every_statement_on_a_schema_that_is_not_there_names_the_command_with_its_schema(dsn: str) -> None:
    hint = r"run: pqrun migrate --schema 'my jobs'$"
    job = NewJob(job_type="t", payload="{}")
    async with (
        asyncpg.create_pool(dsn, min_size=0, max_size=4) as pool,
        PgJobStore(dsn, schema="my jobs") as store,
        PgJobStore(pool=pool, schema="my jobs") as pooled,
    ):
        links = [store.open_link("claim", kept=True), pooled.open_link("claim", kept=False)]
        keeper = KeptRegistry(store.open_pooled(), store.statements)
        await keeper.connect()
        for attempt in (
            lambda: store.get(1),
            lambda: store.enqueue_jobs([job]),
            lambda: store.enqueue_jobs([job, job]),
            lambda: links[0].run("find_lost", 1),
            lambda: links[1].run("find_lost", 1),
            lambda: reap_lost(links[0]),
            lambda: keeper.register("w", "host", 1),
        ):
            with pytest.raises(SchemaError, match=hint):
                await attempt()
        async with store.transaction() as connection:
            with pytest.raises(SchemaError, match=hint):
                await store.enqueue_jobs([job], connection=connection)
        await keeper.close()
        for link in links:
            await link.close()


async def test_a_migration_that_fails_leaves_nothing_behind(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = migrations()
    broken = Migration(known[-1].version + 1, "broken", "CREATE TABLE /*$schema*/pqrun.half (); SELECT 1 / 0")
    monkeypatch.setattr(migrating, "migrations", lambda: (*known, broken))
    with pytest.raises(StoreError, match="division by zero"):
        await PgJobStore(empty_dsn).migrate()
    async with connected(empty_dsn) as connection:
        assert not await connection.fetchval("SELECT to_regnamespace('pqrun') IS NOT NULL")
    monkeypatch.undo()
    async with hearing(empty_dsn):  # no lock is left either
        assert len(await PgJobStore(empty_dsn).migrate()) == len(known)


async def apply(connection: asyncpg.Connection, *which: Migration) -> None:
    """By hand, as an older version of pqrun would have."""
    await connection.execute("CREATE SCHEMA IF NOT EXISTS pqrun")
    for migration in which:
        await connection.execute(migration.template)


async def test_the_version_of_payloads_comes_without_rewriting_a_table_and_rows_of_before_are_of_the_first(
    empty_dsn: str,
) -> None:
    jobs, payload_version = migrations()[:2]
    async with connected(empty_dsn) as connection:
        await apply(connection, jobs)
        await connection.execute("INSERT INTO pqrun.jobs (job_type) VALUES ('t')")
        await connection.execute(
            "INSERT INTO pqrun.jobs (job_type, status, finished_at) VALUES ('t', 'CANCELLED', now())"
        )
        files = "SELECT pg_relation_filenode('pqrun.jobs_active'), pg_relation_filenode('pqrun.jobs_finished')"
        before = await connection.fetchrow(files)
        await apply(connection, payload_version)
        assert await connection.fetchrow(files) == before
        assert [row[0] for row in await connection.fetch("SELECT payload_version FROM pqrun.jobs")] == [1, 1]


async def test_rights_on_the_function_and_the_registry_hold_for_what_takes_their_place(
    empty_dsn: str, connection: asyncpg.Connection
) -> None:
    jobs, payload_version, schedules = migrations()[:3]
    (audit,) = (m for m in migrations() if m.name == "audit")
    async with connected(empty_dsn) as owner:
        await apply(owner, jobs)
        async with owner.transaction():  # roles belong to the whole server: rolled back with the rest
            await owner.execute("""
                CREATE ROLE "Producer"; CREATE ROLE worker; CREATE ROLE stranger;
                GRANT USAGE ON SCHEMA pqrun TO PUBLIC;
                REVOKE EXECUTE ON FUNCTION pqrun.enqueue FROM PUBLIC;
                GRANT EXECUTE ON FUNCTION pqrun.enqueue TO "Producer" WITH GRANT OPTION;
                GRANT SELECT, INSERT, UPDATE, DELETE ON pqrun.workers TO worker;
            """)
            await apply(owner, payload_version, schedules, audit)
            function = "SELECT has_function_privilege($1, (SELECT oid FROM pg_proc WHERE proname = 'enqueue'), $2)"
            may = [await owner.fetchval(function, role, "EXECUTE") for role in ("Producer", "worker", "stranger")]
            assert may == [True, False, False]
            assert await owner.fetchval(function, "Producer", "EXECUTE WITH GRANT OPTION")
            for table in ("pqrun.task_shapes", "pqrun.schedules", "pqrun.audit", "pqrun.operations"):
                query = f"SELECT has_table_privilege($1, '{table}', $2)"
                assert [await owner.fetchval(query, role, "INSERT") for role in ("Producer", "worker")] == [False, True]
            await owner.execute(
                'DROP OWNED BY "Producer", worker; DROP ROLE "Producer"; DROP ROLE worker; DROP ROLE stranger'
            )
    async with connected(empty_dsn) as untouched:
        await untouched.execute("DROP SCHEMA pqrun CASCADE")
        await apply(untouched, jobs, payload_version)
        names = "SELECT proname FROM pg_proc WHERE pronamespace = 'pqrun'::regnamespace ORDER BY 1"
        assert [row[0] for row in await untouched.fetch(names)] == ["enqueue", "stored_key"]
        acl = "SELECT proacl FROM pg_proc WHERE proname = 'enqueue' AND pronamespace = 'pqrun'::regnamespace"
        assert await untouched.fetchval(acl) is None  # open to all, as it was


async def test_who_works_or_ends_jobs_may_keep_attempts_and_nobody_else(empty_dsn: str) -> None:
    (attempts,) = [migration for migration in migrations() if migration.name == "attempts"]
    before = [migration for migration in migrations() if migration.version < attempts.version]
    async with connected(empty_dsn) as owner:
        await apply(owner, *before)
        async with owner.transaction():  # roles belong to the whole server
            await owner.execute("""
                CREATE ROLE worker; CREATE ROLE "Ender"; CREATE ROLE watcher;
                GRANT SELECT, INSERT, UPDATE, DELETE ON pqrun.workers TO worker;
                GRANT INSERT ON pqrun.jobs_finished TO "Ender";
                GRANT SELECT (id, status) ON pqrun.jobs TO watcher;
            """)
            await apply(owner, attempts)
            query = "SELECT has_table_privilege($1, 'pqrun.attempts', $2)"
            roles, rights = ("worker", "Ender", "watcher"), ("SELECT", "INSERT", "DELETE", "UPDATE")
            may = [[await owner.fetchval(query, role, right) for right in rights] for role in roles]
            assert may == [[True] * 4, [True, True, True, False], [False] * 4]
            query = "SELECT has_sequence_privilege($1, 'pqrun.attempts_id_seq', 'USAGE')"
            assert [await owner.fetchval(query, role) for role in roles] == [True, True, False]
            await owner.execute(
                'DROP OWNED BY worker, "Ender", watcher; DROP ROLE worker; DROP ROLE "Ender"; DROP ROLE watcher'
            )


async def test_migrations_are_valid_in_psql_as_they_stand(empty_dsn: str, connection: asyncpg.Connection) -> None:
    async with connected(empty_dsn) as by_hand:
        await by_hand.execute("CREATE SCHEMA pqrun")
        for migration in migrations():
            await by_hand.execute(migration.template)
        columns = [row for row in await catalog(connection) if row[0] == "column" and row[1] != "migrations"]
        found = [row for row in await catalog(by_hand) if row[0] == "column"]
        assert found == [row for row in columns if row[1] != "migrations_pkey"]
