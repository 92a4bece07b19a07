"""Hooks around defer: called once per job for every way in, before and after the row is written."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import psycopg
import pytest
from pydantic import BaseModel

from pqrun import (
    App,
    ArgumentsError,
    DeclarationError,
    Deferral,
    Job,
    JobContext,
    JobHandle,
    NotOpenError,
    OptionError,
    PayloadError,
    PgJobStore,
    StoreError,
    Task,
)
from pqrun.job.dedupe import stored_key
from tests.public.at_work import count_jobs
from tests.support.database import connected

SECRET = "hunter2"


class Order(BaseModel):
    tenant: str = "t1"
    number: int = 1


class Refused(Exception):
    pass


@pytest.fixture
def ship(jobs: App[None]) -> Task[..., Order, None, None]:
    """A task with options of its own."""

    @jobs.task(payload=Order, queue="parcels", priority=3, timeout=timedelta(minutes=1), dedupe_key="order:{number}")
    async def ship(ctx: JobContext, payload: Order) -> None: ...

    return ship


async def stored(handle: JobHandle[None]) -> Job:
    return await handle.job()


# Before.


async def test_before_sees_the_validated_payload_and_the_finished_options(
    jobs: App[None], ship: Task[..., Order, None, None]
) -> None:
    seen: list[Deferral] = []
    jobs.before_defer(seen.append)
    async with jobs:
        await ship.defer(number="7")
        await ship.options(run_after=timedelta(hours=1), dedupe_key=None, max_attempts=2).defer(number=8)
    first, second = seen
    assert (first.job_type, first.payload) == ("ship", Order(number=7))
    assert (first.queue, first.priority, first.max_attempts, first.timeout) == ("parcels", 3, 5, 60.0)
    assert (first.dedupe_key, first.run_after, first.in_transaction) == ("order:7", None, False)
    assert (second.dedupe_key, second.run_after, second.max_attempts) == (None, timedelta(hours=1), 2)


async def test_the_payload_of_a_function_with_parameters_is_shown_as_a_dict_of_them(jobs: App[None]) -> None:
    seen: list[object] = []

    @jobs.before_defer
    def look(deferral: Deferral) -> None:
        seen.append(deferral.payload)

    @jobs.task
    async def bill(ctx: JobContext, number: int, note: str = "x") -> None: ...

    async with jobs:
        await bill.defer(7)
    assert seen == [{"number": 7, "note": "x"}]


async def test_what_before_raises_reaches_the_caller_as_it_is_and_nothing_is_written(
    jobs: App[None], ship: Task[..., Order, None, None], connection: asyncpg.Connection
) -> None:
    refusal, after = Refused(), []
    jobs.after_defer(lambda deferral, handle: after.append(handle.id))

    @jobs.before_defer
    def refuse_the_third(deferral: Deferral) -> None:
        if isinstance(deferral.payload, Order) and deferral.payload.number == 3:
            raise refusal

    async with jobs:
        with pytest.raises(Refused) as raised:
            await ship.defer(number=3)
        assert raised.value is refusal
        with pytest.raises(Refused):
            await jobs.defer_many(ship.call(number=number) for number in range(1, 5))
        async with jobs.store.transaction() as transaction:
            with pytest.raises(Refused):
                await ship.options(connection=transaction).defer(number=3)
            await transaction.execute("SELECT 1")  # it stays usable
    assert await count_jobs(connection) == 0
    assert not after


async def test_before_may_write_the_job_with_other_options(jobs: App[None], ship: Task[..., Order, None, None]) -> None:
    due = datetime(2999, 1, 1, tzinfo=UTC)

    @jobs.before_defer
    def route(deferral: Deferral) -> Deferral:
        assert isinstance(deferral.payload, Order)
        return deferral.replace(
            queue=f"tenant-{deferral.payload.tenant}",
            priority=-1,
            max_attempts=9,
            timeout=timedelta(seconds=5),
            run_after=due,
            dedupe_key=f"{deferral.payload.tenant}:{deferral.dedupe_key}",
        )

    async with jobs:
        (job,) = [await stored(handle) for handle in await jobs.defer_many([ship.call(tenant="x", number=7)])]
    assert (job.queue, job.priority, job.max_attempts, job.timeout_seconds) == ("tenant-x", -1, 9, 5.0)
    assert (job.run_after, job.dedupe_key, job.payload) == (due, "x:order:7", {"tenant": "x", "number": 7})


async def test_each_hook_sees_what_the_one_before_returned_and_what_is_not_replaced_stays(
    jobs: App[None], ship: Task[..., Order, None, None], connection: asyncpg.Connection
) -> None:
    delay = timedelta(seconds=0.1, microseconds=1)
    jobs.before_defer(lambda deferral: deferral.replace(queue="a"))
    jobs.before_defer(lambda deferral: None)
    jobs.before_defer(lambda deferral: deferral.replace(queue=deferral.queue + "b"))
    async with jobs:
        job = await stored(await ship.options(run_after=timedelta(days=1)).defer())
        assert (job.queue, job.priority, job.dedupe_key) == ("ab", 3, "order:1")
        assert job.run_after - job.created_at == pytest.approx(timedelta(days=1), abs=timedelta(seconds=5))
    seen: list[Deferral] = []
    jobs.before_defer(seen.append)
    async with jobs:
        await ship.options(run_after=delay).defer(number=2)
    assert seen[0].run_after == delay


async def test_changing_the_payload_that_a_hook_sees_changes_nothing_that_is_stored(
    jobs: App[None], ship: Task[..., Order, None, None]
) -> None:
    @jobs.before_defer
    def meddle(deferral: Deferral) -> None:
        assert isinstance(deferral.payload, Order)
        deferral.payload.number = 99

    given = Order(number=7)
    async with jobs:
        assert (await stored(await ship.defer(given))).payload["number"] == 7
    assert given.number == 7


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"queue": ""}, "queue"),
        ({"priority": 40_000}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"timeout": -1}, "timeout"),
        ({"run_after": datetime(2999, 1, 1)}, "run_after"),  # noqa: DTZ001  # the point
        ({"dedupe_key": ""}, "key"),
    ],
)
@pytest.mark.parametrize("by_method", [True, False])
async def test_an_impossible_option_of_a_hook_is_refused_and_named(
    jobs: App[None],
    ship: Task[..., Order, None, None],
    connection: asyncpg.Connection,
    change: dict[str, Any],
    option: str,
    by_method: bool,
) -> None:
    @jobs.before_defer
    def wrong(deferral: Deferral) -> Deferral:
        return deferral.replace(**change) if by_method else msgspec.structs.replace(deferral, **change)

    async with jobs:
        with pytest.raises(ValueError, match=option) as raised:
            await ship.defer()
    assert type(raised.value).__module__ == "pqrun.errors"
    assert await count_jobs(connection) == 0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda deferral: deferral.job_type, "must return None or deferral.replace.*it returned str"),
        (lambda deferral: msgspec.structs.replace(deferral, job_type="x"), "may change options only"),
        (lambda deferral: msgspec.structs.replace(deferral, payload=Order()), "may change options only"),
        (lambda deferral: deferral.replace(job_type="x"), "cannot change 'job_type' of a deferral; it can change"),
    ],
)
async def test_a_hook_may_change_nothing_but_options(
    jobs: App[None], ship: Task[..., Order, None, None], answer: Any, reason: str
) -> None:
    jobs.before_defer(answer)
    async with jobs:
        with pytest.raises(ArgumentsError, match=reason):
            await ship.defer()


async def test_hooks_are_not_called_for_what_is_refused_anyway(
    jobs: App[None], ship: Task[..., Order, None, None]
) -> None:
    seen: list[Deferral] = []
    jobs.before_defer(seen.append)
    with pytest.raises(NotOpenError):
        await ship.defer()
    with pytest.raises(NotOpenError):
        await jobs.defer_many([ship.call()])
    async with jobs:
        with pytest.raises(PayloadError):
            await ship.defer(number="x")
        with pytest.raises(OptionError):
            ship.options(priority=1_000_000)
    assert not seen


# After.


async def test_after_gets_what_was_written_and_its_handle(jobs: App[None], ship: Task[..., Order, None, None]) -> None:
    seen: list[tuple[str, object, int, bool]] = []
    jobs.before_defer(lambda deferral: deferral.replace(queue="elsewhere"))

    @jobs.after_defer
    def note(deferral: Deferral, handle: JobHandle[object]) -> None:
        seen.append((deferral.queue, deferral.payload, handle.id, handle.created))

    async with jobs:
        first = await ship.defer()
        again = await ship.defer()
    assert first.id == again.id
    assert seen == [("elsewhere", Order(), first.id, True), ("elsewhere", Order(), first.id, False)]


async def test_a_batch_calls_the_hooks_once_per_job_when_it_is_written_and_in_order(
    jobs: App[None], ship: Task[..., Order, None, None]
) -> None:
    seen: list[object] = []
    jobs.before_defer(lambda deferral: seen.append(("before", deferral.dedupe_key)))
    jobs.after_defer(lambda deferral, handle: seen.append(("after", deferral.dedupe_key, handle.id)))
    async with jobs:
        calls = [ship.call(number=number) for number in (2, 1)]
        assert not seen  # a call is written by nobody yet
        first, second = await jobs.defer_many(calls)
        assert seen == [
            ("before", "order:2"),
            ("before", "order:1"),
            ("after", "order:2", first.id),
            ("after", "order:1", second.id),
        ]
        await jobs.defer_many([])
    assert len(seen) == 4


@pytest.mark.parametrize("in_batch", [True, False])
async def test_in_a_transaction_after_is_called_before_the_commit(
    dsn: str, jobs: App[None], ship: Task[..., Order, None, None], in_batch: bool
) -> None:
    seen: list[bool] = []

    @jobs.after_defer
    def note(deferral: Deferral, handle: JobHandle[object]) -> None:
        seen.append(deferral.in_transaction)

    async def roll_back(other: asyncpg.Connection) -> None:
        async with jobs.store.transaction() as transaction:
            if in_batch:
                await jobs.defer_many([ship.call()], connection=transaction)
            else:
                await ship.options(connection=transaction).defer()
            assert seen == [True]
            assert await count_jobs(other) == 0
            raise Refused

    async with jobs, connected(dsn) as other:
        with pytest.raises(Refused):
            await roll_back(other)
        assert await count_jobs(other) == 0


async def test_what_after_raises_is_logged_once_without_its_message_and_loses_no_handle(
    jobs: App[None], ship: Task[..., Order, None, None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[int] = []

    @jobs.after_defer
    def broken(deferral: Deferral, handle: JobHandle[object]) -> None:
        raise ValueError(SECRET, deferral.payload)

    jobs.after_defer(lambda deferral, handle: seen.append(handle.id))
    async with jobs:
        single = await ship.defer(tenant=SECRET)
        batch = await jobs.defer_many([ship.call(number=2), ship.call(number=3)])
    assert seen == [handle.id for handle in (single, *batch)]
    lines = [record.getMessage() for record in caplog.records if "after_defer" in record.getMessage()]
    assert len(lines) == 3
    line = broken.__code__.co_firstlineno + 2
    assert f"broken raised ValueError at test_hooks.py:{line}; job {single.id} is written all the same" in lines[0]
    assert SECRET not in caplog.text


async def test_after_is_not_called_when_the_database_refuses(
    jobs: App[None], ship: Task[..., Order, None, None], connection: asyncpg.Connection
) -> None:
    seen: list[object] = []
    jobs.after_defer(lambda deferral, handle: seen.append(handle))
    await connection.execute("ALTER TABLE pqrun.jobs_active ADD CHECK (queue <> 'parcels')")
    async with jobs:
        with pytest.raises(StoreError):
            await ship.defer()
    assert not seen


# Who has hooks, and what can be one.


async def test_hooks_belong_to_their_app_and_not_to_the_store(
    dsn: str, jobs: App[None], store: PgJobStore, connection: asyncpg.Connection
) -> None:
    seen: list[object] = []
    jobs.before_defer(seen.append)
    other = App(dsn=dsn)

    @other.task
    async def bill(ctx: JobContext, number: int) -> None: ...

    async with jobs, other:
        await bill.defer(1)
        await store.enqueue("bill", {"number": 2})
        await connection.execute("""SELECT pqrun.enqueue('bill', '{"number": 3}')""")
        assert not seen
        await jobs.defer_many([bill.call(4)])  # written by this app
    (deferral,) = seen
    assert isinstance(deferral, Deferral)
    assert deferral.payload == {"number": 4}


async def test_a_hook_counts_from_its_registration_on(jobs: App[None], ship: Task[..., Order, None, None]) -> None:
    seen: list[object] = []
    async with jobs:
        await ship.defer(number=1)
        jobs.before_defer(seen.append)
        await ship.defer(number=2)
    assert len(seen) == 1


async def async_hook(deferral: Deferral) -> None: ...


def takes_nothing() -> None: ...


def test_what_cannot_be_a_hook_is_refused_where_it_is_registered(jobs: App[None]) -> None:
    wrong: list[tuple[Any, str]] = [
        (async_hook, "async_hook is async"),
        (takes_nothing, r"takes_nothing\(\) -> None does not take that \[takes_nothing \(test_hooks.py:"),
        (5, "takes a plain function; got int"),
    ]
    for hook, reason in wrong:
        with pytest.raises(DeclarationError, match=reason):
            jobs.before_defer(hook)
        with pytest.raises(DeclarationError, match=reason):
            jobs.after_defer(hook)


def test_a_deferral_does_not_show_its_payload() -> None:
    deferral = Deferral(
        job_type="ship",
        payload=Order(tenant=SECRET),
        queue="q",
        priority=0,
        max_attempts=1,
        timeout=None,
        run_after=None,
        dedupe_key=SECRET,
        in_transaction=False,
    )
    assert repr(deferral) == "Deferral(job_type='ship', queue='q')"
    assert deferral.replace(dedupe_key="k" * 300).dedupe_key == stored_key("k" * 300)


async def test_synchronous_defers_pass_the_same_hooks(
    jobs: App[None], ship: Task[..., Order, None, None], dsn: str
) -> None:
    told: list[tuple[str, bool, int]] = []

    @jobs.before_defer
    def route(deferral: Deferral) -> Deferral:
        return deferral.replace(queue="routed")

    @jobs.after_defer
    def note(deferral: Deferral, handle: JobHandle[object]) -> None:
        told.append((deferral.queue, deferral.in_transaction, handle.id))

    def defer_all() -> list[int]:
        with psycopg.connect(dsn) as own:
            joined = ship.options(connection=own).defer_sync(number=1)
            (many,) = jobs.defer_many_sync([ship.call(number=2)], connection=own)
        alone = ship.defer_sync(number=3)
        return [joined.id, many.id, alone.id]

    async with jobs:
        ids = await asyncio.to_thread(defer_all)
        assert [(await stored(ship.handle(job_id))).queue for job_id in ids] == ["routed"] * 3
    assert told == [("routed", True, ids[0]), ("routed", True, ids[1]), ("routed", False, ids[2])]
