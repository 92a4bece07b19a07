"""``pqrun jobs``: tables, JSON lines, counts, pages, and what is said of a query that cannot be read."""

import json

import asyncpg

from pqrun.job.state import Status
from tests.cli.running import environment, run_command
from tests.support.rows import make_job


async def run(dsn: str, *arguments: str) -> tuple[int, list[str]]:
    code, output = await run_command("jobs", *arguments, env=environment(PQRUN_DSN=dsn))
    return code, output.splitlines()


async def test_a_table_shows_the_jobs_of_a_query_newest_first(dsn: str, connection: asyncpg.Connection) -> None:
    error = (
        'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: [red]no such card[/red] ' + "x" * 150
    )
    failed = await make_job(
        connection, status=Status.FAILED, job_type="send_mail", last_error=error, dedupe_key="k", duration_ms=1500
    )
    await make_job(connection, status=Status.FAILED, job_type="pay")
    ready = await make_job(connection, job_type="send_text", queue="mail")
    code, lines = await run(dsn, "task:send_*")
    assert code == 0
    assert lines[0].split() == ["id", "task", "queue", "state", "attempt", "age", "ran", "key", "error"]
    assert lines[1].split()[:5] == [str(ready), "send_text", "mail", "ready", "0/5"]
    assert lines[2].split()[:5] == [str(failed), "send_mail", "default", "failed", "1/5"]
    assert lines[2].split()[6:8] == ["1.5s", "k"]
    assert lines[2].endswith("ValueError: [red]no such card[/red] " + "x" * 150)
    assert len(lines) == 3


async def test_words_of_a_query_may_be_several_arguments(dsn: str, connection: asyncpg.Connection) -> None:
    await make_job(connection)
    wanted = await make_job(connection, status=Status.FAILED, queue="mail")
    code, lines = await run(dsn, "state:failed", "queue:mail", "--json")
    assert code == 0
    assert [json.loads(line)["id"] for line in lines] == [wanted]


async def test_json_lines_have_names_that_stay_and_no_payload(dsn: str, connection: asyncpg.Connection) -> None:
    await make_job(connection, payload='{"card": "4111"}')
    _, lines = await run(dsn, "--json")
    (found,) = map(json.loads, lines)
    assert set(found) == {
        "id",
        "task",
        "queue",
        "state",
        "priority",
        "attempts",
        "max_attempts",
        "created_at",
        "run_after",
        "locked_at",
        "finished_at",
        "duration_ms",
        "worker",
        "dedupe_key",
        "error",
    }
    assert "4111" not in lines[0]


async def test_the_end_of_a_page_says_how_to_get_the_next(dsn: str, connection: asyncpg.Connection) -> None:
    first, second, third = [await make_job(connection) for _ in range(3)]
    _, lines = await run(dsn, "--limit", "2")
    assert [line.split()[0] for line in lines[1:3]] == [str(third), str(second)]
    assert lines[3] == f"pqrun: more with --after {second}"
    _, lines = await run(dsn, "--limit", "2", "--after", str(second))
    assert [line.split()[0] for line in lines[1:]] == [str(first)]


async def test_a_count_and_no_jobs(dsn: str, connection: asyncpg.Connection) -> None:
    await make_job(connection)
    assert await run(dsn, "--count") == (0, ["1"])
    assert await run(dsn, "--count", "--json", "state:failed") == (0, ['{"count":0,"exact":true}'])
    assert await run(dsn, "state:failed") == (0, ["no jobs"])


async def test_a_query_that_cannot_be_read_is_wrong_usage(dsn: str) -> None:
    told = "pqrun: query, character 1: stat:failed: no such key; did you mean state:?"
    assert await run(dsn, "stat:failed") == (2, [told])


async def test_bulk_commands_take_a_query(dsn: str, connection: asyncpg.Connection) -> None:
    wanted = await make_job(connection, status=Status.FAILED, job_type="send_mail")
    await make_job(connection, status=Status.FAILED, job_type="pay")
    await connection.execute("UPDATE pqrun.jobs SET created_at = clock_timestamp() - interval '3 h'")
    query = "task:send_* since:1h"  # of a command that is about ended jobs: since their end
    code, output = await run_command("retry", "--query", query, "--json", env=environment(PQRUN_DSN=dsn))
    assert (code, json.loads(output)["done_ids"]) == (0, [wanted])
