"""``jobs.pause``, ``resume``, ``paused``, ``queues`` and ``workers`` of an app, for coroutines and for synchronous code."""

import asyncio

import pytest

from pqrun import App, ArgumentsError, JobContext, NotOpenError, OptionError, WrongLoopError


def make_app(dsn: str) -> App[None]:
    jobs = App(dsn=dsn)

    @jobs.task(queue="mail", name="send")
    async def send(ctx: JobContext) -> None: ...

    return jobs


async def test_a_task_or_its_name_is_paused(dsn: str) -> None:
    async with make_app(dsn) as jobs:
        send = jobs._tasks["send"]
        assert await jobs.pause(task=send, reason="why")
        assert not await jobs.pause(task="send")
        (pause,) = await jobs.paused()
        assert (pause.kind, pause.name, pause.reason) == ("task", "send", "why")
        assert await jobs.resume(task=send)
        assert not await jobs.resume(task="send")
        assert await jobs.pause(queue="mail")
        assert [queue.name for queue in await jobs.queues()] == ["mail"]
        assert await jobs.resume(queue="mail")
        with pytest.raises(ArgumentsError):
            await jobs.pause()  # type: ignore[call-overload]  # refused by checkers too
        with pytest.raises(OptionError, match="job_type"):
            await jobs.pause(task=5)  # type: ignore[call-overload]  # the same
        with pytest.raises(ArgumentsError, match="give queues=, concurrency=, fetching= or several"):
            await jobs.workers.set("w")


async def test_synchronous_code_does_the_same(dsn: str) -> None:
    jobs = make_app(dsn)

    def script() -> None:
        assert jobs.pause_sync(queue="mail", reason="why")
        assert jobs.pause_sync(task="send")
        assert [pause.kind for pause in jobs.paused_sync()] == ["queue", "task"]
        (mail,) = jobs.queues_sync()
        assert mail.reason == "why"
        assert jobs.resume_sync(queue="mail")
        assert jobs.resume_sync(task=jobs._tasks["send"])
        assert jobs.paused_sync() == []
        jobs.close_sync()

    await asyncio.to_thread(script)
    with pytest.raises(WrongLoopError, match=r"await jobs.pause\(\.\.\.\)"):
        jobs.pause_sync(queue="mail")


async def test_a_closed_app_says_how_to_open_it(dsn: str) -> None:
    jobs = make_app(dsn)
    for call in (jobs.paused, jobs.queues, jobs.workers.list):
        with pytest.raises(NotOpenError):
            await call()
