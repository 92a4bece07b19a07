"""ctx.complete_sync in plain functions, without a connection: committed at once, through the worker's loop."""

import threading
from typing import Any

import pytest

from pqrun.errors import CompletionRefused, NotOpenError, ResultError, WrongLoopError
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.store import PgJobStore
from tests.run.working import stored, wait_finished, working
from tests.support.jobs import Noted, job_record
from tests.support.waiting import wait_until

Context = JobContext[Any]


async def test_a_plain_function_completes_its_job_before_it_returns(store: PgJobStore) -> None:
    may_return = threading.Event()

    def handler(ctx: Context) -> dict[str, object]:
        ctx.complete_sync({"ok": 1})
        may_return.wait(30)
        return {"ignored": True}

    job_id = await store.enqueue("t", {})
    async with working(store, {"t": handler}) as crew:
        job = await wait_finished(store, job_id)
        assert (job.status, job.result) == (Status.DONE, {"ok": 1})
        assert not crew.heard.of(events.Done)  # the handler works on
        may_return.set()
        await crew.heard.wait_for(events.Done)
    assert (await stored(store, job_id)).result == {"ok": 1}


async def test_what_complete_refuses_is_refused_in_the_thread(store: PgJobStore) -> None:
    refused: list[str] = []

    def handler(ctx: Context) -> None:
        with pytest.raises(ResultError):
            ctx.complete_sync([1])
        ctx.complete_sync()
        with pytest.raises(CompletionRefused) as caught:
            ctx.complete_sync()
        refused.append(str(caught.value))

    job_id = await store.enqueue("t", {})
    async with working(store, {"t": handler}):
        job = await wait_finished(store, job_id)
        await wait_until(lambda: refused)
    assert (job.status, job.result) == (Status.DONE, None)
    assert "already completed" in refused[0]


async def test_a_handler_that_was_asked_to_stop_cannot_complete(store: PgJobStore) -> None:
    running, heard = threading.Event(), threading.Event()
    refused: list[str] = []

    def handler(ctx: Context) -> None:
        running.set()
        heard.wait(30)
        with pytest.raises(CompletionRefused) as caught:
            ctx.complete_sync()
        refused.append(str(caught.value))

    job_id = await store.enqueue("t", {})
    async with working(store, {"t": handler}) as crew:
        await wait_until(running.is_set)
        await store.cancel(job_id)
        await crew.heard.wait_for(events.StopRequested)
        heard.set()
        job = await wait_finished(store, job_id)
        await wait_until(lambda: refused)
    assert job.status is Status.CANCELLED


async def test_a_coroutine_is_told_to_await_the_other(store: PgJobStore) -> None:
    async def handler(ctx: Context) -> None:
        with pytest.raises(WrongLoopError, match=r"await ctx\.complete"):
            ctx.complete_sync()

    job_id = await store.enqueue("t", {})
    async with working(store, {"t": handler}):
        assert (await wait_finished(store, job_id)).status is Status.DONE


def test_a_thread_that_outlived_its_worker_is_told_that_there_is_nobody_to_complete_for_it() -> None:
    async def never(result: str | None, connection: object) -> None:
        raise AssertionError

    def never_sync(result: str | None, connection: object) -> None:
        raise AssertionError

    ctx = JobContext(
        job=job_record(),
        store=PgJobStore("postgresql://localhost/never_opened"),
        worker_id="w",
        state=None,
        encode=lambda result: None,
        complete_claim=never,
        complete_claim_sync=never_sync,
        reports=Noted(),
    )
    with pytest.raises(NotOpenError):
        ctx.complete_sync()
