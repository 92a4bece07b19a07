"""The log: one line per event on the logger ``pqrun``, with ids and types, never with payloads or results."""

import asyncio
import logging
import re

import asyncpg
import pytest
from pydantic import BaseModel

from pqrun import App, JobContext, JobFailed, PgJobStore, Status
from pqrun.run.events import Done, Failed, Picked, Recovered, Released, Retrying
from tests.public.at_work import AtOnce, at_work, low_level, running
from tests.support.rows import make_job, make_worker

SECRET = "hunter2"


class Login(BaseModel):
    token: str


class Session(BaseModel):
    token: str


@pytest.fixture(autouse=True)
def _everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def lines(caplog: pytest.LogCaptureFixture, pattern: str) -> list[str]:
    """The messages of ``pqrun`` that match."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "pqrun" and re.search(pattern, record.getMessage())
    ]


async def test_a_job_is_picked_and_done_in_one_line_each(jobs: App[None], caplog: pytest.LogCaptureFixture) -> None:
    @jobs.task(payload=Login)
    async def log_in(ctx: JobContext, payload: Login) -> Session:
        return Session(token=payload.token)

    async with at_work(jobs) as told:
        job = await log_in.defer(token=SECRET)
        await job.result(timeout=30)
        await told.wait_for(Done)
    assert lines(caplog, r"^picked ") == [f"picked log_in id={job.id} attempt=1/5"]
    (done,) = lines(caplog, r"^done ")
    assert re.fullmatch(rf"done log_in id={job.id} attempt=1/5 in \d+ ms", done)
    assert SECRET not in caplog.text


async def test_failures_tell_attempt_and_next_try_and_the_last_one_that_it_was(
    jobs: App[None], caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.task(payload=Login, max_attempts=2, backoff=AtOnce())
    async def log_in(ctx: JobContext, payload: Login) -> None:
        raise ValueError("no such user\n2026-01-01 ERROR forged \x1b[31m")

    async with at_work(jobs) as told:
        job = await log_in.defer(token=SECRET)
        with pytest.raises(JobFailed):
            await job.result(timeout=30)
        await told.wait_for(Failed)
        assert len(told.of(Retrying)) == 1
    (again,), (final,) = lines(caplog, "next try"), lines(caplog, "for good")
    assert f"failed log_in id={job.id} attempt=1/2, next try in 0 s: " in again
    assert f"failed log_in id={job.id} attempt=2/2 for good: " in final
    for line in (again, final):
        assert "\n" not in line
        assert "\x1b" not in line
    levels = {record.levelname for record in caplog.records if "failed log_in" in record.getMessage()}
    assert levels == {"WARNING", "ERROR"}
    assert SECRET not in caplog.text


async def test_a_stop_tells_its_steps_and_what_went_back(jobs: App[None], caplog: pytest.LogCaptureFixture) -> None:
    @jobs.task
    async def hang(ctx: JobContext) -> None:
        await asyncio.Event().wait()

    async with jobs:
        worker = jobs.worker(environ={}, worker_id="w", shutdown_grace=0.05)
        async with running(worker) as told:
            job = await hang.defer()
            await told.wait_for(Picked)
        assert len(told.of(Released)) == 1
    assert lines(caplog, "^released") == [f"released hang id={job.id} attempt=1/5 after its start"]
    steps = [line.split(": ")[1].split(",")[0] for line in lines(caplog, "^worker w stopping")]
    assert steps == ["stop fetching", "wait", "cancel", "flush"]
    assert len(lines(caplog, "^worker w started")) == len(lines(caplog, "^worker w stopped$")) == 1


async def test_a_recovered_job_tells_whose_it_was(
    store: PgJobStore, connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    dead = await make_worker(connection, "gone\nforged", dead=True)
    job_id = await make_job(connection, status=Status.RUNNING, worker=dead, locked_by="gone\nforged")

    async def t(ctx: JobContext) -> None: ...

    async with low_level(store, {"t": t}) as told:
        await told.wait_for(Recovered)
        await told.wait_for(Done)
    (line,) = lines(caplog, "^recovered")
    assert line.startswith(f"recovered t id={job_id} from gone")
    assert "READY" in line
    assert "\n" not in line


async def test_a_handlers_logger_names_its_job(jobs: App[None], caplog: pytest.LogCaptureFixture) -> None:
    @jobs.task
    async def sweep(ctx: JobContext) -> None:
        ctx.logger.info("swept %d rooms", 3)

    async with at_work(jobs):
        job = await sweep.defer()
        await job.result(timeout=30)
    (record,) = [record for record in caplog.records if record.name == "pqrun.job"]
    assert record.getMessage() == f"[sweep id={job.id} attempt=1] swept 3 rooms"
    assert (vars(record)["job_id"], vars(record)["job_type"], vars(record)["attempt"]) == (job.id, "sweep", 1)


async def test_hostile_names_stay_on_one_line(store: PgJobStore, caplog: pytest.LogCaptureFixture) -> None:
    name = "a'); DELETE FROM jobs; --\n2026-01-01 ERROR forged\x1b[31m %s"

    async def handler(ctx: JobContext) -> None:
        ctx.logger.warning("from inside")

    async with low_level(store, {name: handler}, worker_id='w"\n%d') as told:
        await store.enqueue(name, {}, queue=name)
        await told.wait_for(Done)
    assert caplog.records
    for record in caplog.records:
        assert "\n" not in record.getMessage()
        assert "\x1b" not in record.getMessage()


async def test_at_a_level_above_info_a_job_that_goes_well_writes_nothing(
    jobs: App[None], caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.task
    async def sweep(ctx: JobContext) -> None: ...

    caplog.set_level(logging.WARNING, "pqrun")
    async with at_work(jobs):
        await (await sweep.defer()).result(timeout=30)
    assert lines(caplog, "") == []
