"""``jobs.select``: many jobs of an app at once, for coroutines and synchronous code, beside a worker and without."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pqrun import (
    App,
    BulkReport,
    JobCancelled,
    JobContext,
    JobFilter,
    JobSelection,
    NotOpenError,
    RefusalReason,
    Status,
    StoreError,
    Task,
    WrongLoopError,
)
from tests.public.at_work import at_work
from tests.support.database import connected


class Shop:
    """An app with two tasks."""

    def __init__(self, jobs: App[None]) -> None:
        self.jobs = jobs
        self.started = asyncio.Event()

        @jobs.task(queue="mail", dedupe_key="send:{to}")
        async def send(ctx: JobContext, to: str) -> None: ...

        @jobs.task(max_attempts=1)
        async def pay(ctx: JobContext, number: int, *, card: str = "") -> dict[str, int]:
            if card == "wait":
                self.started.set()
                await asyncio.Event().wait()
            if card:
                raise ValueError(f"no such card for {number}")
            return {"number": number}

        self.send: Task[..., Any, None, None] = send
        self.pay: Task[..., Any, dict[str, int], None] = pay


@pytest.fixture
def shop(jobs: App[None]) -> Iterator[Shop]:
    """Not opened yet."""
    yield Shop(jobs)
    jobs.close_sync()


async def test_what_failed_is_found_and_retried_by_its_error(shop: Shop) -> None:
    async with at_work(shop.jobs):
        failed = await shop.jobs.defer_many([shop.pay.call(n, card="bad") for n in range(3)])
        done = await shop.pay.defer(7)
        await done.result(timeout=30)
        for job in failed:
            with pytest.raises(Exception, match="no such card"):
                await job.result(timeout=30)
        wanted = shop.jobs.select(JobFilter(statuses=[Status.FAILED], error_contains="NO SUCH CARD for 1"))
        assert [job.id for job in await wanted.find()] == [failed[1].id]
        assert await shop.jobs.select(JobFilter(job_types=["pay"])).count() == 4
    async with shop.jobs:
        report = await wanted.retry()
        assert report.done_ids == (failed[1].id,)
        assert await failed[1].status() is Status.READY


async def test_a_retried_job_and_one_that_was_moved_are_run_at_once(shop: Shop) -> None:
    async with at_work(shop.jobs, queues=["default", "mail"]):
        (job,) = await shop.jobs.defer_many([shop.pay.options(queue="nowhere").call(7)])
        assert (await shop.jobs.select([job.id]).move("mail")).done == 1
        assert await job.result(timeout=5) == {"number": 7}
        assert (await shop.jobs.select([job.id]).retry(force=True)).done == 1
        assert await job.result(timeout=5) == {"number": 7}


async def test_running_and_waiting_jobs_are_cancelled_and_whoever_waits_hears_it(shop: Shop) -> None:
    async with at_work(shop.jobs, queues=["default"]):
        running = await shop.pay.defer(1, card="wait")
        waiting = await shop.pay.options(queue="elsewhere").defer(2)
        results = [asyncio.create_task(job.result(timeout=30)) for job in (running, waiting)]
        await shop.started.wait()
        report = await shop.jobs.select(JobFilter(job_types=["pay"])).cancel()
        assert (report.done, report.requested) == (2, 1)
        for result in results:
            with pytest.raises(JobCancelled):
                await result


async def test_a_payload_selects_by_its_fields(shop: Shop) -> None:
    async with shop.jobs:
        handles = await shop.jobs.defer_many([shop.send.call(to) for to in ("ada", "bob")])
        report = await shop.jobs.select(JobFilter(payload={"to": "bob"})).prioritize(9)
        assert report.done_ids == (handles[1].id,)
        assert [(await handle.job()).priority for handle in handles] == [0, 9]


def test_synchronous_code_does_the_same(shop: Shop) -> None:
    handles = [shop.send.defer_sync(to) for to in ("ada", "bob", "cid")]
    ids = [handle.id for handle in handles]
    mail = shop.jobs.select(JobFilter(queues=["mail"]))
    told: list[int] = []
    assert mail.count_sync() == 3
    assert [job.id for job in mail.find_sync(limit=2)] == ids[:2]
    assert shop.jobs.select(ids, limit=1).move_sync("post", on_progress=lambda p: told.append(p.done)).done_ids == (
        ids[0],
    )
    assert told == [1]
    assert mail.prioritize_sync(3).done == 2
    assert mail.cancel_sync(dry_run=True).done == 2
    assert mail.cancel_sync().done == 2
    assert mail.retry_sync(force=True).done == 2
    assert mail.cancel_sync().done == 2
    report: BulkReport = shop.jobs.select([*ids, 999_999]).delete_sync()
    assert report.done_ids == tuple(ids[1:])
    assert report.reasons == {RefusalReason.NOT_FOUND: 1, RefusalReason.WAITING: 1}
    assert shop.jobs.select(ids).delete_sync(waiting=True).done == 1


async def test_a_synchronous_call_in_a_loop_names_the_other(shop: Shop) -> None:
    async with shop.jobs:
        with pytest.raises(WrongLoopError, match=r"await jobs.select\(...\).cancel\(\)"):
            shop.jobs.select([1]).cancel_sync()


async def test_an_app_that_is_not_open_says_so_at_the_call(shop: Shop) -> None:
    selection = shop.jobs.select([1])
    assert isinstance(selection, JobSelection)
    with pytest.raises(NotOpenError):
        await selection.cancel()


async def test_an_error_midway_says_how_many_were_done(shop: Shop, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pqrun.store.bulk.PIECE_ROWS", 2)
    async with shop.jobs, connected(dsn) as other:
        handles = await shop.jobs.defer_many([shop.pay.call(n) for n in range(5)])
        refuse = f"ALTER TABLE pqrun.jobs_finished ADD CONSTRAINT refused CHECK (id < {handles[2].id}) NOT VALID"
        await other.execute(refuse)
        with pytest.raises(StoreError) as caught:
            await shop.jobs.select(handle.id for handle in handles).cancel()
        await other.execute("ALTER TABLE pqrun.jobs_finished DROP CONSTRAINT refused")
        assert caught.value.__notes__ == ["cancel: it had been done to 2 jobs, which stays; the rest is as it was"]
        assert [await handle.status() for handle in handles] == [Status.CANCELLED] * 2 + [Status.READY] * 3
