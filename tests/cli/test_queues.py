"""``pqrun queues``, ``pause``, ``resume`` and ``workers``: in words and as JSON, with their exit codes."""

import asyncio
import json
from typing import Any

import asyncpg
import pytest

from pqrun.cli.queues import parse_queues
from pqrun.errors import OptionError
from pqrun.installed import installed_version
from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.store import PgJobStore
from tests.cli.running import environment, run_command
from tests.run.working import working
from tests.support.rows import make_job
from tests.support.waiting import wait_until


class Shell:
    def __init__(self, dsn: str) -> None:
        self._env = environment(PQRUN_DSN=dsn, COLUMNS="200")

    async def __call__(self, *arguments: str) -> tuple[int, str]:
        return await run_command(*arguments, env=self._env)

    async def says(self, *arguments: str) -> str:
        code, output = await self(*arguments)
        assert code == 0, output
        return output


@pytest.fixture
def shell(dsn: str) -> Shell:
    return Shell(dsn)


async def test_a_queue_is_paused_shown_and_resumed(shell: Shell, connection: asyncpg.Connection) -> None:
    assert await shell.says("queues") == "no queues"
    job_id = await make_job(connection, queue="mail")
    assert await shell.says("pause", "--queue", "mail", "--reason", "provider\ndown") == "queue mail paused"
    assert await shell.says("pause", "--queue", "mail") == "queue mail was paused already"
    assert await shell.says("pause", "--task", "t") == "task t paused"
    shown = (await shell.says("queues")).splitlines()
    assert shown[0].split() == ["queue", "ready", "running", "later", "failing", "oldest", "workers", "slots", "state"]
    assert shown[1].split()[:2] == ["mail", "1"]
    assert shown[1].endswith("paused: provider\\ndown")
    assert shown[2] == "task t is paused"
    assert "its queue mail is paused since" in await shell.says("why", str(job_id))
    found = json.loads(await shell.says("queues", "--json"))
    assert (found["queues"][0]["name"], found["queues"][0]["ready"], found["queues"][0]["at_least"]) == ("mail", 1, [])
    assert [(one["kind"], one["name"]) for one in found["paused"]] == [("queue", "mail"), ("task", "t")]
    resumed = json.loads(await shell.says("resume", "--queue", "mail", "--json"))
    assert resumed == {"kind": "queue", "name": "mail", "changed": True}
    assert await shell.says("resume", "--queue", "mail") == "queue mail was not paused"


async def test_wrong_usage_ends_with_2_and_a_database_that_is_away_with_1(shell: Shell) -> None:
    for command in ("pause", "resume"):
        assert await shell(command) == (2, "pqrun: --queue, --task: give one of them")
    code, output = await shell("resume", "--queue", "a", "--dsn", "postgresql://127.0.0.1:1/none")
    assert code == 1
    assert output.startswith("pqrun: ")


async def test_workers_are_shown_and_changed(shell: Shell, store: PgJobStore) -> None:
    async def nothing(ctx: JobContext[Any]) -> None: ...

    async with working(store, {"t": nothing}, queues={"default": 3, "mail": None}, worker_id="web-1") as crew:
        await crew.heard.wait_for(events.WorkerStarted)
        assert (await shell.says("workers")).splitlines()[1].split()[-3:] == ["4", "default:3,mail", "t"]
        (one,) = json.loads(await shell.says("workers", "--json"))
        assert (one["name"], one["slots"], one["concurrency"], one["wanted"]) == ("web-1", {"default": 3}, 4, {})
        told = await shell.says("workers", "set", str(one["id"]), "--queues", "default:5,mail:2")
        assert told == f"told 1 worker: {one['id']}"
        await wait_until(lambda: crew.worker.settings.concurrency == 7)
        assert await shell("workers", "set", "nobody", "--concurrency", "2") == (1, "pqrun: no worker nobody lives")
        code, output = await shell("workers", "set", "web-1")
        assert (code, output) == (2, "pqrun: --queues, --concurrency: give one of them, or both")
        code, output = await shell("workers", "set", "web-1", "--queues", "default:x")
        assert (code, "--queues: expected NAME or NAME:NUMBER" in output) == (2, True)


async def test_workers_are_paused_resumed_shown_and_drained(shell: Shell, store: PgJobStore) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def held(ctx: JobContext[Any]) -> None:
        started.set()
        await go_on.wait()

    async def state() -> str:
        (one,) = json.loads(await shell.says("workers", "--json"))
        return str(one["state"])

    async def is_paused() -> bool:
        return await state() == "paused"

    async with working(store, {"t": held}, worker_id="web-1") as crew:
        await store.enqueue("t", {})
        await started.wait()
        (one,) = json.loads(await shell.says("workers", "--json"))
        assert (one["state"], one["fetching"], one["version"]) == ("alive", True, installed_version())
        assert await shell("workers", "pause") == (2, "pqrun: WORKER, --all: give one of them")
        assert await shell("workers", "drain", "web-1", "--all") == (2, "pqrun: WORKER, --all: give one of them")
        assert await shell.says("workers", "pause", "web-1") == f"told 1 worker: {one['id']}"
        await wait_until(is_paused)
        shown = (await shell.says("queues")).splitlines()
        assert shown[1].split()[-6:] == ["1", "(1", "paused)", "0", "workers", "paused"]
        assert await shell.says("workers", "resume", "--all") == f"told 1 worker: {one['id']}"
        told = await shell.says("workers", "stacks", "web-1", "--timeout", "30")
        assert told.startswith(f"worker web-1 ({one['id']}), 2")
        assert "in held\n    await go_on.wait()" in told
        (told_as_json,) = json.loads(await shell.says("workers", "stacks", "--all", "--timeout", "30", "--json"))
        assert told_as_json["text"].startswith("1 running")
        assert await shell.says("workers", "drain", str(one["id"])) == f"told 1 worker: {one['id']}"
        assert await state() == "draining"
        go_on.set()
        assert crew.run is not None
        await asyncio.wait_for(asyncio.shield(crew.run), 30)
    assert await shell("workers", "resume", "--all") == (1, "pqrun: no worker lives")


async def test_a_worker_that_does_not_answer_is_named(shell: Shell, connection: asyncpg.Connection) -> None:
    number = await connection.fetchval("INSERT INTO pqrun.workers (worker_id) VALUES ('old') RETURNING id")
    said = await shell("workers", "stacks", "old", "--timeout", "0.1")
    assert said == (1, f"pqrun: worker old ({number}) did not answer within 0.1 s")


def test_queues_are_read_as_names_and_numbers() -> None:
    assert parse_queues("default:10, mail:2,other,") == {"default": 10, "mail": 2, "other": None}
    assert parse_queues("a:b:3") == {"a:b": 3}
    for text in ("a:", "a:b", "a:-1", "a:1.5", "a:²"):
        with pytest.raises(OptionError):
            parse_queues(text)
