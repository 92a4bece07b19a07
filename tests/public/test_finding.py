"""Jobs found by ids that come from outside, as in a URL."""

from typing import Any

import pytest

from pqrun import App, ArgumentsError, JobContext, JobFailed, NotOpenError, Status, Task, WrongLoopError
from tests.public.at_work import at_work

BEYOND = [2**63, -(2**63) - 1, 10**30]


def declared(jobs: App[None]) -> tuple[Task[..., Any, None, None], Task[..., Any, None, None]]:
    @jobs.task(max_attempts=1)
    async def mine(ctx: JobContext, a: int) -> None:
        if a == 0:
            raise ValueError("not this one")

    @jobs.task
    async def others(ctx: JobContext) -> None: ...

    return mine, others


async def test_a_job_is_found_by_its_own_task_only(jobs: App[None]) -> None:
    mine, others = declared(jobs)
    async with jobs:
        job = await mine.options(priority=3).defer(1)
        found = await mine.options(queue="other").find(job.id)
        assert found is not None
        assert (found.id, found.status, found.payload, found.priority) == (job.id, Status.READY, {"a": 1}, 3)
        assert await others.find(job.id) is None
        assert await mine.find(job.id + 1) is None


async def test_an_id_that_no_job_can_have_finds_nothing(jobs: App[None]) -> None:
    mine, _ = declared(jobs)
    async with jobs:
        assert [await mine.find(job_id) for job_id in BEYOND] == [None] * len(BEYOND)


async def test_an_id_that_is_no_number_is_refused(jobs: App[None]) -> None:
    mine, _ = declared(jobs)
    given: Any = "7"
    async with jobs:
        with pytest.raises(ArgumentsError, match="the id of a job is an int; got str"):
            await mine.find(given)


async def test_finding_needs_an_open_app_and_finding_synchronously_no_loop(jobs: App[None]) -> None:
    mine, _ = declared(jobs)
    with pytest.raises(NotOpenError):
        await mine.find(1)
    with pytest.raises(WrongLoopError, match=r"await mine\.find"):
        mine.find_sync(1)


def test_synchronous_code_finds_the_same(jobs: App[None]) -> None:
    mine, others = declared(jobs)
    job = mine.defer_sync(1)
    found = mine.find_sync(job.id)
    assert found is not None
    assert found.payload == {"a": 1}
    assert others.find_sync(job.id) is None
    assert [mine.find_sync(job_id) for job_id in BEYOND] == [None] * len(BEYOND)
    jobs.close_sync()


async def test_the_error_of_a_found_job_can_be_told_in_one_line(jobs: App[None]) -> None:
    mine, _ = declared(jobs)
    async with jobs:
        job = await mine.defer(0)
        assert (await job.job()).error_summary is None
    async with at_work(jobs):
        with pytest.raises(JobFailed):
            await job.result(timeout=30)
        found = await mine.find(job.id)
    assert found is not None
    assert found.last_error is not None
    assert found.last_error.startswith("Traceback")
    assert found.error_summary == "ValueError: not this one"
