"""A worker of an app: its settings, its queues, its resources, its threads, and how it stops."""

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pqrun import (
    App,
    BackoffPolicy,
    ConfigurationError,
    IdlePollPolicy,
    JobCancelled,
    JobContext,
    LoopErrorPolicy,
    OptionError,
    PqrunError,
    SchemaError,
    Status,
)
from pqrun.run.events import Done, Picked, Released, Unserved, WorkerStarted, WorkerStopped
from pqrun.worker import WorkerOptions
from tests.public.at_work import at_work, count_jobs, running
from tests.support.waiting import Recorder, wait_until

CITY = ContextVar("CITY", default="nowhere")


class TestSettings:
    @pytest.fixture
    def never_opened(self) -> App[None]:
        return App(dsn="postgresql://localhost/never_opened")

    def test_the_environment_wins_over_the_constructor_and_that_over_the_default(self, never_opened: App[None]) -> None:
        environ = {"WORKER_CONCURRENCY": "3", "WORKER_REAPER_ENABLED": "false"}
        settings = never_opened.worker(concurrency=2, reap_stale_every_seconds=5, environ=environ).settings
        assert (settings.concurrency, settings.enable_reaper) == (3, False)
        assert (settings.reap_interval_seconds, settings.stale_timeout_seconds) == (5, 1200)

    def test_the_process_environment_is_read_without_environ(
        self, never_opened: App[None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WORKER_SHUTDOWN_GRACE", "1.5")
        assert never_opened.worker().settings.shutdown_grace_seconds == 1.5

    async def test_a_worker_can_be_made_before_anybody_knows_a_dsn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PQRUN_DSN", raising=False)
        monkeypatch.delenv("DATABASE_URL", raising=False)
        worker = App().worker()  # as in FastAPI(lifespan=jobs.worker().lifespan), at import
        with pytest.raises(ConfigurationError, match="PQRUN_DSN"):
            await worker.run()

    async def test_a_stop_reaches_a_worker_whose_database_does_not_answer(self) -> None:
        connected = asyncio.Event()

        async def be_silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.set()
            await _reader.read()
            writer.close()

        async with await asyncio.start_server(be_silent, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            worker = App(dsn=f"postgresql://nobody@127.0.0.1:{port}/none?sslmode=disable").worker()
            running_worker = asyncio.create_task(worker.run())
            await connected.wait()
            worker.stop()
            await asyncio.wait_for(running_worker, 5)

    @pytest.mark.parametrize("text", ["abc", "0", "-2", ""])
    def test_a_bad_variable_warns_once_and_the_constructor_counts(
        self, never_opened: App[None], caplog: pytest.LogCaptureFixture, text: str
    ) -> None:
        assert never_opened.worker(concurrency=4, environ={"WORKER_CONCURRENCY": text}).settings.concurrency == 4
        (record,) = [record for record in caplog.records if record.name == "pqrun"]
        assert record.levelno == logging.WARNING
        assert f"WORKER_CONCURRENCY={text!r}" in record.getMessage()
        assert "using 4" in record.getMessage()

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("concurrency", 0),
            ("shutdown_grace", -1),
            ("queues", []),
            ("queues", "default"),
            ("retention", timedelta(seconds=-1)),
            ("ack", "never"),
            ("worker_id", ""),
            ("worker_id", "a\x00"),
            ("worker_id", "x" * 201),
            ("worker_id", 5),
            ("retention", timedelta.max),
            ("backoff", BackoffPolicy),
            ("idle_policy", 5),
            ("loop_error_policy", "x"),
            ("direct_dsn", 5),
        ],
    )
    def test_an_impossible_option_of_a_worker_is_named(
        self, never_opened: App[None], option: str, value: object
    ) -> None:
        given: dict[str, Any] = {option: value}
        with pytest.raises(OptionError, match=option):
            never_opened.worker(**given)

    def test_an_unknown_option_is_an_error(self, never_opened: App[None]) -> None:
        given: dict[str, Any] = {"concurency": 3}
        with pytest.raises(TypeError, match="concurency") as caught:
            never_opened.worker(**given)
        assert isinstance(caught.value, PqrunError)

    async def test_concurrency_is_how_many_handlers_run_at_once(self, jobs: App[None]) -> None:
        all_there = asyncio.Barrier(3)
        most = now = 0

        @jobs.task
        async def meet(ctx: JobContext) -> None:
            nonlocal most, now
            now += 1
            most = max(most, now)
            await all_there.wait()
            now -= 1

        async with at_work(jobs, environ={"WORKER_CONCURRENCY": "3"}):
            handles = await jobs.defer_many(meet.call() for _ in range(9))
            for handle in handles:
                await handle.result(timeout=30)
        assert most == 3

    async def test_a_disabled_worker_opens_the_store_and_runs_nothing(
        self, jobs: App[None], connection: asyncpg.Connection
    ) -> None:
        @jobs.task
        async def sweep(ctx: JobContext) -> None: ...

        for worker in (jobs.worker(enabled=False, environ={}), jobs.worker(environ={"WORKER_ENABLED": "false"})):
            async with running(worker) as told:
                assert await (await sweep.defer()).status() is Status.READY
                assert await connection.fetchval("SELECT count(*) FROM pqrun.workers WHERE dead_at IS NULL") == 0
            assert told.seen == []
            assert not jobs.store.is_open
            await worker.run()
        assert await count_jobs(connection) == 2


class TestQueues:
    async def test_a_worker_serves_default_and_the_queues_of_its_tasks(self, jobs: App[None]) -> None:
        @jobs.task(queue="net")
        async def ping(ctx: JobContext) -> None: ...

        async with at_work(jobs, reap_stale_every_seconds=0.05) as told:
            await (await ping.defer()).result(timeout=30)
            await (await ping.options(queue="default").defer()).result(timeout=30)
            elsewhere = await ping.options(queue="elsewhere").defer()
            unserved = await told.wait_for(Unserved)
            assert (unserved.queue, unserved.job_type) == ("elsewhere", "ping")
            assert await elsewhere.status() is Status.READY

    async def test_queues_given_are_the_only_ones(self, jobs: App[None]) -> None:
        @jobs.task(queue="net")
        async def ping(ctx: JobContext) -> None: ...

        async with jobs:
            skipped = await ping.defer()
        async with at_work(jobs, queues=["other"]):
            await (await ping.options(queue="other").defer()).result(timeout=30)
            assert await skipped.status() is Status.READY

    async def test_tasks_declared_before_the_start_are_served(self, jobs: App[None]) -> None:
        worker = jobs.worker(environ={})

        @jobs.task(queue="late")
        async def declared_late(ctx: JobContext) -> None: ...

        async with jobs, running(worker):
            await (await declared_late.defer()).result(timeout=30)


@dataclass
class Resources:
    opened: int = 0
    closed: int = 0
    used_by: list[int] = field(default_factory=list)


class TestResources:
    async def test_resources_are_opened_once_per_worker_typed_and_closed_at_the_end(self, dsn: str) -> None:
        resources = Resources()

        @asynccontextmanager
        async def open_resources() -> AsyncIterator[Resources]:
            resources.opened += 1
            yield resources
            resources.closed += 1

        jobs = App(dsn=dsn, resources=open_resources)

        @jobs.task
        async def use(ctx: JobContext[Resources], n: int) -> None:
            assert ctx.state.closed == 0
            ctx.state.used_by.append(n)

        async with jobs:
            await use.defer(1)
            assert resources.opened == 0  # the API process needs none
        async with at_work(jobs, concurrency=3):
            for n in range(2, 6):
                await (await use.defer(n)).result(timeout=30)
            assert (resources.opened, resources.closed) == (1, 0)
        assert (resources.opened, resources.closed) == (1, 1)
        assert sorted(resources.used_by) == [1, 2, 3, 4, 5]
        async with at_work(jobs):
            assert resources.opened == 2

    async def test_resources_that_cannot_be_opened_are_an_error_of_the_start(self, dsn: str) -> None:
        resources = Resources()

        @asynccontextmanager
        async def open_resources() -> AsyncIterator[None]:
            if resources.opened == 0:
                raise ConnectionError("no cache server")
            yield

        jobs = App(dsn=dsn, resources=open_resources)
        with pytest.raises(ConnectionError, match="no cache server"):
            await jobs.worker(environ={}).run()
        with pytest.raises(ConnectionError, match="no cache server"):
            async with jobs.worker(environ={}).lifespan():
                pytest.fail("it must not start")

    async def test_resources_that_do_not_end_are_cut_off_within_the_shutdowns_time_and_named(
        self, dsn: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        said: list[str] = []

        @asynccontextmanager
        async def open_resources() -> AsyncIterator[None]:
            yield
            try:
                await asyncio.Event().wait()
            finally:
                said.append("cut off")

        jobs = App(dsn=dsn, resources=open_resources)
        async with at_work(jobs, shutdown_grace=0.1, shutdown_timeout=0.5) as told:
            await told.wait_for(WorkerStarted)
        assert said == ["cut off"]
        assert (await told.wait_for(WorkerStopped)).clean
        (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert re.fullmatch(r"resources= did not end within 0\.\d s, what was left of shutdown_timeout: cut off", line)
        assert not jobs.store.is_open

    async def test_what_resources_raise_at_the_end_is_raised_though_it_be_a_timeout(self, dsn: str) -> None:
        @asynccontextmanager
        async def open_resources() -> AsyncIterator[None]:
            yield
            raise TimeoutError("of its own")

        worker = App(dsn=dsn, resources=open_resources).worker(environ={})
        told = Recorder(worker.events)
        run = asyncio.create_task(worker.run())
        await told.wait_for(WorkerStarted)
        worker.stop()
        with pytest.raises(TimeoutError, match="of its own"):
            await asyncio.wait_for(run, 30)


class TestPlainFunctions:
    async def test_a_plain_function_runs_in_a_thread_and_gives_its_typed_result(self, jobs: App[None]) -> None:
        @jobs.task
        def where(ctx: JobContext, n: int) -> dict[str, int]:
            return {"thread": threading.get_ident(), "n": n, "job": ctx.job.id}

        async with at_work(jobs):
            job = await where.defer(3)
            result = await job.result(timeout=30)
        assert (result["n"], result["job"]) == (3, job.id)
        assert result["thread"] != threading.get_ident()

    async def test_jobs_see_the_context_of_the_worker_and_not_each_others(self, jobs: App[None]) -> None:
        seen: list[str] = []

        @jobs.task
        def in_thread(ctx: JobContext) -> None:
            seen.append(CITY.get())
            CITY.set("Paris")

        @jobs.task
        async def in_loop(ctx: JobContext) -> None:
            seen.append(CITY.get())
            CITY.set("Oslo")

        CITY.set("Rome")
        async with at_work(jobs):
            for task in (in_thread, in_loop, in_thread, in_loop):
                await (await task.defer()).result(timeout=30)
        assert seen == ["Rome"] * 4

    async def test_a_plain_function_can_poll_whether_it_is_to_stop(self, jobs: App[None]) -> None:
        polls = threading.Event()

        @jobs.task
        def work(ctx: JobContext) -> None:
            while not ctx.cancelled:
                polls.wait(0.005)

        async with at_work(jobs) as told:
            job = await work.defer()
            await told.wait_for(Picked)
            await job.cancel()
            with pytest.raises(JobCancelled):
                await job.result(timeout=30)


class TestStopping:
    async def test_run_ends_when_stop_is_called_from_another_thread(self, jobs: App[None]) -> None:
        worker = jobs.worker(environ={}, idle_policy=IdlePollPolicy(3600, 3600))
        told = Recorder(worker.events)
        task = asyncio.create_task(worker.run())
        await told.wait_for(WorkerStarted)
        await asyncio.to_thread(worker.stop)
        async with asyncio.timeout(30):
            await task
        assert (await told.wait_for(WorkerStopped)).clean
        assert not jobs.store.is_open

    async def test_a_running_job_may_end_within_the_grace(self, jobs: App[None]) -> None:
        may_end = asyncio.Event()

        @jobs.task
        async def work(ctx: JobContext) -> None:
            await may_end.wait()

        async with jobs:
            worker = jobs.worker(environ={})
            async with running(worker) as told:
                job, behind = await work.defer(), await work.defer()
                await told.wait_for(Picked)
                worker.stop()
                may_end.set()
            assert (await job.status(), await behind.status()) == (Status.DONE, Status.READY)

    async def test_a_job_that_outlasts_the_grace_goes_back_unharmed(self, jobs: App[None]) -> None:
        reasons: list[str | None] = []

        @jobs.task(max_attempts=1)
        async def hang(ctx: JobContext) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                reasons.append(ctx.cancel_reason)

        async with jobs:
            async with running(jobs.worker(environ={}, shutdown_grace=0)) as told:
                job = await hang.defer()
                await told.wait_for(Picked)
            assert told.of(Released)[0].started
            row = await job.job()
            assert (row.status, row.attempts, row.locked_by, row.locked_at) == (Status.READY, 0, None, None)
        assert reasons == ["shutdown"]

    async def test_a_worker_can_run_again_but_not_twice_at_once(self, jobs: App[None]) -> None:
        worker = jobs.worker(environ={})
        for _ in range(2):
            async with running(worker):
                with pytest.raises(ConfigurationError, match="runs already"):
                    await worker.run()

    async def test_the_registry_is_left_at_the_end(self, jobs: App[None], connection: asyncpg.Connection) -> None:
        async with at_work(jobs, worker_id="one"):
            assert await connection.fetchval("SELECT worker_id FROM pqrun.workers") == "one"
        assert await connection.fetchval("SELECT count(*) FROM pqrun.workers WHERE dead_at IS NULL") == 0


class TestPlaces:
    async def test_a_database_without_our_tables_is_told_with_the_command_to_run(self, empty_dsn: str) -> None:
        jobs: App[None] = App(dsn=empty_dsn)
        with pytest.raises(SchemaError, match="migrate"):
            await jobs.worker(environ={}).run()

    @pytest.mark.parametrize("is_direct", [True, False])
    async def test_an_app_on_a_pool_of_the_callers_leaves_it_open_and_warns_once_of_what_it_cannot_have(
        self, dsn: str, is_direct: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        options: WorkerOptions = {"worker_id": "pooled"}
        if is_direct:
            options["direct_dsn"] = dsn
        async with asyncpg.create_pool(dsn, min_size=0, max_size=5) as pool:
            jobs: App[None] = App(pool=pool)

            @jobs.task
            async def sweep(ctx: JobContext) -> dict[str, str]:
                return {"by": ctx.worker_id}

            async with at_work(jobs, **options):
                assert await (await sweep.defer()).result(timeout=30) == {"by": "pooled"}
            assert await pool.fetchval("SELECT status FROM pqrun.jobs") == "DONE"
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert ["direct_dsn" in warning for warning in warnings] == ([] if is_direct else [True])

    async def test_a_pool_too_small_for_a_worker_is_refused(self, dsn: str) -> None:
        async with asyncpg.create_pool(dsn, min_size=0, max_size=3) as pool:
            jobs: App[None] = App(pool=pool)
            with pytest.raises(ConfigurationError, match="max_size"):
                await jobs.worker(environ={}).run()

    async def test_another_schema_is_a_world_of_its_own(self, dsn: str) -> None:
        own: App[None] = App(dsn=dsn, schema="other")
        await own.store.migrate()

        @own.task
        async def sweep(ctx: JobContext) -> dict[str, str]:
            return {"schema": ctx.store.schema}

        async with at_work(own):
            job = await sweep.defer()
            assert await job.result(timeout=30) == {"schema": "other"}

    async def test_two_workers_share_the_work_and_no_job_runs_twice(self, jobs: App[None]) -> None:
        seen: list[int] = []

        @jobs.task
        async def note(ctx: JobContext) -> None:
            seen.append(ctx.job.id)

        async with at_work(jobs, worker_id="a", concurrency=2), at_work(jobs, worker_id="b", concurrency=2):
            handles = await jobs.defer_many(note.call() for _ in range(200))
            for handle in handles:
                await handle.result(timeout=30)
        assert sorted(seen) == sorted(handle.id for handle in handles)

    async def test_acknowledging_one_by_one_gives_the_same_results(self, jobs: App[None]) -> None:
        @jobs.task
        async def double(ctx: JobContext, n: int) -> dict[str, int]:
            return {"n": 2 * n}

        async with at_work(jobs, ack="sync", concurrency=2) as told:
            handles = await jobs.defer_many(double.call(n) for n in range(20))
            assert [(await handle.result(timeout=30))["n"] for handle in handles] == [2 * n for n in range(20)]
            await told.wait_for(Done, count=20)


class Counting(IdlePollPolicy, LoopErrorPolicy):
    """An idle policy that tells how it was asked."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer
        self.streaks: list[int] = []

    def next_sleep(self, empty_streak: int) -> float:
        self.streaks.append(empty_streak)
        if len(self.streaks) < 3:
            return 0.01
        answer: Any = self.answer
        return answer  # type: ignore[no-any-return]  # what a wrong policy would do


@pytest.mark.parametrize("answer", [-1, "soon", float("nan")])
async def test_an_idle_policy_is_asked_by_streak_and_a_wrong_answer_stops_nothing(
    jobs: App[None], answer: object
) -> None:
    @jobs.task
    async def sweep(ctx: JobContext) -> None: ...

    policy = Counting(answer)
    async with at_work(jobs, idle_policy=policy):
        await wait_until(lambda: len(policy.streaks) >= 3)
        assert policy.streaks[:3] == [1, 2, 3]
        await (await sweep.defer()).result(timeout=30)
