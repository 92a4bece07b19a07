"""Without decorators: a store, a worker with a dict of handlers, payloads and results as JSON objects."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel

from pqrun import (
    App,
    BackoffPolicy,
    CancelOutcome,
    ConfigurationError,
    DeclarationError,
    IdlePollPolicy,
    JobContext,
    JobFailed,
    LoopErrorPolicy,
    NotOpenError,
    PayloadError,
    PgJobStore,
    Status,
    Worker,
)
from pqrun.run.events import Done, Failed, Picked
from tests.public.at_work import at_work, count_jobs, low_level, running
from tests.support.rows import make_job


class Welcome(BaseModel):
    user_id: int


class Sent(BaseModel):
    message_id: str


async def echo(ctx: JobContext) -> dict[str, object]:
    return {"got": ctx.job.payload, "by": ctx.worker_id}


async def nothing(ctx: JobContext) -> None: ...


async def test_a_worker_takes_every_documented_option_and_runs_a_handler(store: PgJobStore) -> None:
    worker = Worker(
        store=store,
        handlers={"echo": echo},
        concurrency=1,
        enabled=True,
        enable_reaper=True,
        backoff=BackoffPolicy(),
        idle_policy=IdlePollPolicy(base_seconds=1.0, max_seconds=10.0),
        loop_error_policy=LoopErrorPolicy(),
        reap_stale_every_seconds=60,
        default_stale_after=timedelta(minutes=20),
        shutdown_grace=timedelta(seconds=10),
        shutdown_timeout=timedelta(seconds=30),
        worker_id="custom-worker-id",
        queues=["default"],
        retention=timedelta(days=7),
        ack="batch",
        environ={},
    )
    assert worker.settings == Worker(store=store, handlers={}, environ={}).settings
    async with running(worker) as told:
        job_id = await store.enqueue("echo", {"a": [1, None, "x"]})
        await told.wait_for(Done)
        job = await store.get(job_id)
    assert job is not None
    assert job.result == {"got": {"a": [1, None, "x"]}, "by": "custom-worker-id"}
    assert (job.status, job.attempts, job.locked_by) == (Status.DONE, 1, "custom-worker-id")


async def test_enqueue_stores_every_option(store: PgJobStore, connection: asyncpg.Connection) -> None:
    when = datetime(2030, 1, 1, tzinfo=UTC)
    job_id = await store.enqueue(
        "echo",
        {"a": 1},
        queue="mail",
        dedupe_key="k",
        run_after=when,
        priority=-3,
        max_attempts=9,
        timeout_seconds=1.5,
    )
    assert isinstance(job_id, int)
    job = await store.get(job_id)
    assert job is not None
    assert (job.job_type, job.payload, job.queue, job.dedupe_key) == ("echo", {"a": 1}, "mail", "k")
    assert (job.run_after, job.priority, job.max_attempts, job.timeout_seconds) == (when, -3, 9, 1.5)
    assert job.status is Status.SCHEDULED
    assert await store.enqueue("echo", {"a": 2}, dedupe_key="k") == job_id
    assert await count_jobs(connection) == 1


async def test_a_payload_is_a_json_object(store: PgJobStore, connection: asyncpg.Connection) -> None:
    wrong: list[Any] = [[1], "x", None, 5, {1: "x"}, {"x": object()}, {"x": float("nan")}, {"x": "\x00"}]
    for payload in wrong:
        with pytest.raises(PayloadError, match="payload"):
            await store.enqueue("echo", payload)
    assert await count_jobs(connection) == 0


async def plain(ctx: JobContext) -> None: ...


REFUSED: dict[str, tuple[Any, str]] = {
    "number": (5, "int"),
    "list": ([1], "list"),
    "text": ("x", "str"),
    "model": (Sent(message_id="m"), "Sent"),
    "wrong key": ({1: "x"}, "int"),
    "infinity": ({"x": float("inf")}, "x"),
    "coroutine": (plain, "coroutine"),
}


async def test_a_result_that_is_no_json_object_fails_at_once(store: PgJobStore) -> None:
    async def handler(ctx: JobContext) -> Mapping[str, object] | None:
        returned = REFUSED[str(ctx.job.payload["kind"])][0]
        if returned is plain:
            returned = returned(ctx)
        result: Mapping[str, object] | None = returned
        return result

    async with low_level(store, {"handler": handler, "nothing": nothing}) as told:
        ids = {kind: await store.enqueue("handler", {"kind": kind}) for kind in REFUSED}
        await told.wait_for(Failed, count=len(REFUSED))
        await store.enqueue("nothing", {})
        await told.wait_for(Done)
        for kind, (_, word) in REFUSED.items():
            job = await store.get(ids[kind])
            assert job is not None
            assert (job.status, job.attempts, job.result) == (Status.FAILED, 1, None)
            assert word in (job.last_error or "")


async def test_a_plain_function_and_a_callable_object_are_handlers_too(store: PgJobStore) -> None:
    def in_thread(ctx: JobContext) -> dict[str, object]:
        return {"n": ctx.job.payload["n"]}

    class Echo:
        async def __call__(self, ctx: JobContext) -> dict[str, object]:
            return {"n": ctx.job.payload["n"]}

    async with low_level(store, {"thread": in_thread, "object": Echo()}) as told:
        ids = [await store.enqueue(name, {"n": 1}) for name in ("thread", "object")]
        await told.wait_for(Done, count=2)
        results = [job.result for job_id in ids if (job := await store.get(job_id))]
    assert results == [{"n": 1}] * 2


async def test_a_low_level_worker_serves_all_queues(store: PgJobStore) -> None:
    async with low_level(store, {"echo": echo}) as told:
        for queue in ("default", "a", "b"):
            await store.enqueue("echo", {}, queue=queue)
        await told.wait_for(Done, count=3)


async def test_a_handler_completes_in_the_stores_transaction(store: PgJobStore, connection: asyncpg.Connection) -> None:
    await connection.execute("CREATE TABLE business (note text)")

    async def book(ctx: JobContext) -> None:
        async with ctx.store.transaction() as inside:
            await inside.execute("INSERT INTO business VALUES ('one')")
            await ctx.complete({"booked": 1}, connection=inside)

    async with low_level(store, {"book": book}) as told:
        job_id = await store.enqueue("book", {})
        await told.wait_for(Done)
        job = await store.get(job_id)
    assert job is not None
    assert (job.status, job.result) == (Status.DONE, {"booked": 1})
    assert await connection.fetchval("SELECT count(*) FROM business") == 1


async def test_a_decorated_and_a_low_level_worker_share_the_tables(
    jobs: App[None], store: PgJobStore, connection: asyncpg.Connection
) -> None:
    @jobs.task(payload=Welcome)
    async def send_email(ctx: JobContext, payload: Welcome) -> Sent:
        return Sent(message_id=f"m-{payload.user_id}")

    @jobs.task(name="echo", payload=Welcome)
    async def declared_here_run_there(ctx: JobContext, payload: Welcome) -> dict[str, object]:
        raise AssertionError

    async with (
        at_work(jobs, worker_id="typed", queues=["typed"]),
        low_level(store, {"echo": echo}, worker_id="plain", queues=["plain"]),
    ):
        by_name = send_email.handle(await store.enqueue("send_email", {"user_id": 7}, queue="typed"))
        assert await by_name.result(timeout=30) == Sent(message_id="m-7")
        typed = await declared_here_run_there.options(queue="plain").defer(user_id=8)
        assert await typed.result(timeout=30) == {"got": {"user_id": 8}, "by": "plain"}
    runs = await connection.fetch("SELECT job_type, locked_by, attempts FROM pqrun.jobs ORDER BY id")
    assert [tuple(run) for run in runs] == [("send_email", "typed", 1), ("echo", "plain", 1)]


async def test_sql_enqueues_for_both_and_tells_whether_it_made_a_job(
    jobs: App[None], connection: asyncpg.Connection
) -> None:
    @jobs.task(payload=Welcome)
    async def send_email(ctx: JobContext, payload: Welcome) -> Sent:
        return Sent(message_id=f"m-{payload.user_id}")

    call = "SELECT * FROM pqrun.enqueue('send_email', '{\"user_id\": 1}', dedupe_key => 'k', priority => 10)"
    (first,), (again,) = await connection.fetch(call), await connection.fetch(call)
    assert (first["created"], again["created"]) == (True, False)
    assert first["id"] == again["id"]
    async with at_work(jobs):
        handle = send_email.handle(first["id"])
        assert await handle.result(timeout=30) == Sent(message_id="m-1")
        assert (await handle.job()).priority == 10


async def test_cancel_and_retry_by_id_in_every_state(store: PgJobStore, connection: asyncpg.Connection) -> None:
    for status in Status:
        job_id = await make_job(connection, status=status)
        expected = CancelOutcome.ALREADY_FINISHED if status.is_finished else CancelOutcome.CANCELLED
        assert await store.cancel(job_id) is (CancelOutcome.REQUESTED if status is Status.RUNNING else expected)
        if status is not Status.RUNNING:
            await store.retry(job_id, force=status is Status.DONE)
            job = await store.get(job_id)
            assert job is not None
            assert (job.status, job.attempts) == (Status.READY, 0)
    assert await store.cancel(10**9) is CancelOutcome.NOT_FOUND
    assert await store.get(10**9) is None


async def test_a_store_opens_closes_and_opens_again_and_says_when_it_is_closed(dsn: str) -> None:
    store = PgJobStore(dsn)
    with pytest.raises(NotOpenError):
        await store.enqueue("echo", {})
    for _ in range(2):
        await store.start()
        await store.start()
        await store.enqueue("echo", {})
        async with store.connection() as lent:
            assert isinstance(await lent.execute("SELECT 1"), str)
        await store.close()
        await store.close()
        with pytest.raises(NotOpenError):
            await store.get(1)


async def test_a_worker_opens_and_closes_a_store_that_nobody_opened(dsn: str) -> None:
    store = PgJobStore(dsn)
    worker = Worker(store=store, handlers={"nothing": nothing}, environ={})
    async with running(worker):
        assert store.is_open
        await store.enqueue("nothing", {})
    assert not store.is_open


@pytest.mark.parametrize("handler", [None, 5, "echo"])
def test_a_handler_that_is_no_function_is_refused_when_the_worker_is_made(handler: Any) -> None:
    with pytest.raises(DeclarationError, match="echo"):
        Worker(store=PgJobStore("postgresql://localhost/never_opened"), handlers={"echo": handler})


async def test_the_timeout_of_a_low_level_job_holds(store: PgJobStore) -> None:
    async def hang(ctx: JobContext) -> None:
        await asyncio.Event().wait()

    jobs: App[None] = App(store=store)

    @jobs.task(name="hang")
    async def handle_of_it(ctx: JobContext) -> None: ...

    async with low_level(store, {"hang": hang}) as told:
        job_id = await store.enqueue("hang", {}, timeout_seconds=0.1, max_attempts=1)
        await told.wait_for(Picked)
        with pytest.raises(JobFailed, match="HandlerTimeout"):
            await handle_of_it.handle(job_id).result(timeout=30)


def test_handlers_that_cannot_be_are_refused(never_opened: PgJobStore) -> None:
    async def handler(ctx: JobContext) -> None: ...

    with pytest.raises(DeclarationError, match="__cleanup"):
        Worker(store=never_opened, handlers={"__cleanup": handler})
    handlers: Any = [handler]
    with pytest.raises(DeclarationError, match="handlers= takes a dict"):
        Worker(store=never_opened, handlers=handlers)
    store: Any = "postgresql://localhost/x"
    with pytest.raises(ConfigurationError, match="store= takes a PgJobStore"):
        Worker(store=store, handlers={"t": handler})


@pytest.fixture
def never_opened() -> PgJobStore:
    return PgJobStore("postgresql://localhost/never_opened")
