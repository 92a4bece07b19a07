"""Resources of a test's own in place of those of the app."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest

from pqrun import App, ConfigurationError, JobContext, Task
from tests.public.at_work import at_work, running


class Mailer:
    def __init__(self, name: str) -> None:
        self.name = name


@pytest.fixture
def opened() -> list[str]:
    return []


@pytest.fixture
def jobs(dsn: str, opened: list[str]) -> App[Mailer]:
    @asynccontextmanager
    async def real() -> AsyncIterator[Mailer]:
        opened.append("real")
        yield Mailer("real")

    return App(dsn=dsn, resources=real)


@pytest.fixture
def who(jobs: App[Mailer]) -> Task[..., Any, dict[str, str], Mailer]:
    @jobs.task
    async def who(ctx: JobContext[Mailer]) -> dict[str, str]:
        return {"mailer": ctx.state.name}

    return who


async def test_workers_started_inside_use_them_and_the_apps_are_never_opened(
    jobs: App[Mailer], who: Task[..., Any, dict[str, str], Mailer], opened: list[str]
) -> None:
    worker = jobs.worker(environ={})  # made outside, started inside
    with jobs.override_resources(lambda: nullcontext(Mailer("fake"))):
        async with jobs, running(worker):
            assert await (await who.defer()).result(30) == {"mailer": "fake"}
    assert not opened


async def test_blocks_nest_and_each_restores_what_was_there_also_after_an_error(
    jobs: App[Mailer], who: Task[..., Any, dict[str, str], Mailer], opened: list[str]
) -> None:
    seen: list[str] = []

    async def look(*, fails: bool = False) -> None:
        async with at_work(jobs):
            seen.append((await (await who.defer()).result(30))["mailer"])
        if fails:
            raise LookupError

    with jobs.override_resources(lambda: nullcontext(Mailer("outer"))):
        with pytest.raises(LookupError), jobs.override_resources(lambda: nullcontext(Mailer("inner"))):
            await look(fails=True)
        await look()
    await look()
    assert seen == ["inner", "outer", "real"]
    assert opened == ["real"]


async def test_a_worker_that_runs_keeps_what_it_entered(
    jobs: App[Mailer], who: Task[..., Any, dict[str, str], Mailer]
) -> None:
    async with at_work(jobs):
        with jobs.override_resources(lambda: nullcontext(Mailer("fake"))):
            assert await (await who.defer()).result(30) == {"mailer": "real"}


async def test_the_override_is_closed_with_its_worker(
    jobs: App[Mailer], who: Task[..., Any, dict[str, str], Mailer], opened: list[str]
) -> None:
    @asynccontextmanager
    async def fake() -> AsyncIterator[Mailer]:
        opened.append("fake")
        yield Mailer("fake")
        opened.append("closed")

    with jobs.override_resources(fake):
        async with at_work(jobs):
            await (await who.defer()).result(30)
    assert opened == ["fake", "closed"]


def test_what_is_no_context_manager_function_is_refused(jobs: App[Mailer]) -> None:
    wrong: Any = nullcontext(Mailer("fake"))
    with pytest.raises(ConfigurationError, match="not the result of calling it"), jobs.override_resources(wrong):
        pass
