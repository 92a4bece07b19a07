"""``pqrun why`` and ``pqrun workers``: what they print of what the store says."""

import json
from pathlib import Path

import asyncpg

from pqrun.job.state import Status
from tests.cli.running import environment, run_command
from tests.store.test_explain import register
from tests.support.rows import make_job


async def test_why_says_the_reasons_and_what_to_do(dsn: str, connection: asyncpg.Connection) -> None:
    job = await make_job(connection, job_type="send", queue="mail")
    await register(connection, "pay")
    code, output = await run_command("why", str(job), env=environment(PQRUN_DSN=dsn))
    assert code == 0
    assert output.splitlines() == [
        f"job {job}: send in queue mail, READY",
        "- no living worker has the task send; they have pay",
        "    -> import the module that declares it where the app is made, and deploy",
    ]


async def test_why_as_json(dsn: str, connection: asyncpg.Connection) -> None:
    job = await make_job(connection, status=Status.CANCELLED)
    code, output = await run_command("why", str(job), "--json", env=environment(PQRUN_DSN=dsn))
    found = json.loads(output)
    assert (code, found["job_id"], found["status"]) == (0, job, "CANCELLED")
    assert [reason["why"] for reason in found["reasons"]] == ["finished"]
    assert found["reasons"][0]["advice"] == f"pqrun retry {job}"


async def test_why_lets_the_code_of_an_app_read_the_payload(
    dsn: str, connection: asyncpg.Connection, shop: Path
) -> None:
    bad = await make_job(connection, job_type="pay", payload='{"number": "4111 1111", "card": "x"}')
    good = await make_job(connection, job_type="pay", payload='{"number": 1, "card": "x"}')
    other = await make_job(connection, job_type="nobody")
    env = environment(PQRUN_DSN=dsn)
    _, output = await run_command("why", str(bad), "--app", "shop:jobs", env=env, cwd=shop)
    assert "- this code cannot read its payload: the stored payload does not satisfy Order: number:" in output
    assert "4111" not in output
    _, output = await run_command("why", str(good), "--app", "shop:jobs", env=env, cwd=shop)
    assert "cannot read" not in output
    _, output = await run_command("why", str(other), "--app", "shop:jobs", env=env, cwd=shop)
    assert "- this code cannot read its payload: the app has no task of this name" in output


async def test_why_of_a_job_that_is_not_there(dsn: str) -> None:
    code, output = await run_command("why", "7", env=environment(PQRUN_DSN=dsn))
    assert (code, output) == (1, "pqrun: there is no job 7 (deleted, or removed by retention)")


async def test_workers_are_listed_with_their_state(dsn: str, connection: asyncpg.Connection) -> None:
    env = environment(PQRUN_DSN=dsn)
    assert await run_command("workers", env=env) == (0, "no workers")
    alive = await register(connection, "pay", "send", queues=["mail", "default"])
    silent = await register(connection, silent=True)
    await make_job(connection, status=Status.RUNNING, worker=alive)
    _, output = await run_command("workers", env=env)
    heading, first, second = output.splitlines()
    columns = [
        "id",
        "name",
        "host",
        "pid",
        "version",
        "state",
        "beat",
        "since",
        "running",
        "at",
        "once",
        "queues",
        "tasks",
    ]
    assert heading.split() == columns
    assert first.split()[:5] == [str(alive), "w", "web-1", "11", "alive"]
    assert first.split()[-3:] == ["1", "mail,default", "pay,send"]
    assert second.split()[:5] == [str(silent), "w", "web-1", "11", "silent"]
    assert second.split()[-1] == "all"
    _, output = await run_command("workers", "--json", env=env)
    found = json.loads(output)
    assert [(one["id"], one["state"], one["running"]) for one in found] == [(alive, "alive", 1), (silent, "silent", 0)]
    assert found[0]["tasks"] == ["pay", "send"]
    assert found[1]["queues"] is None
