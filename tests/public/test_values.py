"""Values on their way through a queue: numbers, secrets, large ones; and the page that says what becomes of each kind."""

import logging
import re
from pathlib import Path
from typing import Any, TypeAlias, Union

import asyncpg
import pytest
from pydantic import BaseModel, SecretStr, field_serializer

from pqrun import App, IdlePollPolicy, JobContext, JobFailed, PgJobStore
from tests.public.at_work import AtOnce, at_work, low_level
from tests.support.database import connected

Number: TypeAlias = Union[float, int]  # noqa: UP007  # with a 1e16 that must not become whole
ROOT = Path(__file__).resolve().parents[2]

NUMBERS = [1e16, -1e22, 1.0, 1, 0.1, 1.7976931348623157e308, 2**53 + 1, 2**63, 2**70, -1, True]


async def test_numbers_keep_their_types_on_the_way_to_a_handler_and_back_as_its_result(jobs: App[None]) -> None:
    seen: list[Any] = []

    @jobs.task
    async def keep(ctx: JobContext, one: Number, many: list[Any], loose: dict[str, Any]) -> dict[str, Any]:
        seen.append((one, many, loose))
        return {"one": one, "many": many, "loose": loose}

    async with at_work(jobs):
        for number in NUMBERS[:-1]:
            result = await (await keep.defer(number, [number, True], {"n": number})).result(timeout=30)
            assert repr(seen[-1]) == repr((number, [number, True], {"n": number}))
            assert repr(result) == repr({"one": number, "many": [number, True], "loose": {"n": number}})


async def test_numbers_keep_their_types_without_decorators(store: PgJobStore) -> None:
    seen: list[Any] = []

    async def keep(ctx: JobContext) -> dict[str, Any]:
        seen.append(ctx.job.payload["numbers"])
        return {"numbers": NUMBERS}

    async with low_level(store, {"keep": keep}) as told:
        job_id = await store.enqueue("keep", {"numbers": NUMBERS})
        from pqrun.run.events import Done

        await told.wait_for(Done)
        job = await store.get(job_id)
    assert job is not None
    assert repr(seen) == repr([NUMBERS])
    assert repr(job.result) == repr({"numbers": NUMBERS})


class Token(BaseModel):
    token: SecretStr

    @field_serializer("token", when_used="json")
    def _clear(self, token: SecretStr) -> str:
        return token.get_secret_value()


async def test_a_secret_that_its_model_stores_is_in_no_log_and_no_error(
    jobs: App[None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []

    @jobs.task(payload=Token, max_attempts=2, backoff=AtOnce())
    async def login(ctx: JobContext, payload: Token) -> None:
        seen.append(payload.token.get_secret_value())
        ctx.logger.debug("with %r", payload)
        raise ValueError(f"cannot use {payload}")

    async with at_work(jobs):
        handle = await login.defer(Token(token=SecretStr("hunter2")))
        with pytest.raises(JobFailed) as caught:
            await handle.result(timeout=30)
        job = await handle.job()
    assert seen == ["hunter2", "hunter2"]
    assert "ValueError" in (job.last_error or "")
    assert "hunter2" not in f"{job.last_error} {job!r} {handle!r} {caught.value!r} {caught.value}"
    assert caplog.records
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("size", [8_000, 8_193, 1_000_000, 10_000_000])
async def test_a_large_payload_wakes_an_idle_worker_and_arrives_whole(jobs: App[None], dsn: str, size: int) -> None:
    seen: list[str] = []

    @jobs.task(name="t" * 200)
    async def keep(ctx: JobContext, text: str) -> None:
        seen.append(text)

    async with at_work(jobs, idle_policy=IdlePollPolicy(3600, 3600)), connected(dsn) as own:
        await (await keep.defer("")).result(timeout=30)
        async with own.transaction():
            job = await keep.options(connection=own).defer("ü" * (size // 2))
        await job.result(timeout=30)
    assert seen == ["", "ü" * (size // 2)]


async def test_five_hundred_defers_in_one_transaction_wake_an_idle_worker_and_all_run(
    jobs: App[None], dsn: str, connection: asyncpg.Connection
) -> None:
    @jobs.task
    async def sweep(ctx: JobContext, number: int) -> None: ...

    async with at_work(jobs, idle_policy=IdlePollPolicy(3600, 3600)), connected(dsn) as own:
        await (await sweep.defer(-1)).result(timeout=30)
        async with own.transaction():
            handles = [await sweep.options(connection=own).defer(number) for number in range(500)]
        for handle in handles:
            await handle.result(timeout=30)
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE status = 'DONE' AND attempts = 1") == 501


def test_the_page_of_values_names_tests_that_exist() -> None:
    folders = ("job", "store", "public", "run", "faults", "cli")
    sources = "\n".join(path.read_text() for folder in folders for path in (ROOT / "tests" / folder).glob("test_*.py"))
    page = (ROOT / "docs" / "values.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| what ")]
    assert rows
    assert [row for row in rows if not re.search(r"`test_\w+`", row)] == []
    named = re.findall(r"`(test_\w+)`", page)
    assert [name for name in named if f"def {name}(" not in sources] == []
