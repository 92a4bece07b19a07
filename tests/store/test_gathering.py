"""Single defers of one process travel together: each caller hears of its own job only, whatever happens to the others of its batch."""

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeAlias

import asyncpg
import pytest

from pqrun import IdlePollPolicy
from pqrun.errors import ConflictError, DatabaseUnavailableError, NotOpenError, PqrunError, SchemaError, StoreError
from pqrun.job.record import Enqueued, NewJob
from pqrun.run import events
from pqrun.store import PgJobStore, gathering
from pqrun.store.gathering import Gatherer
from tests.faults.counted import Counted
from tests.run.working import working
from tests.store.chains import said_by
from tests.store.listening import hearing
from tests.store.locking import holding, wait_until_waiting
from tests.support.database import connected
from tests.support.waiting import wait_until

Lane: TypeAlias = tuple[str, int] | None

REFUSE_BAD = "ALTER TABLE pqrun.jobs_active ADD CONSTRAINT not_bad CHECK (payload->>'bad' IS NULL)"

SLOW_TRIGGER = """
CREATE FUNCTION pqrun.dawdle() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NEW; END';
CREATE TRIGGER dawdle BEFORE INSERT ON pqrun.jobs_active FOR EACH ROW WHEN (NEW.payload ? 'slow') EXECUTE FUNCTION pqrun.dawdle();
"""
"""An insert that stays in flight until somebody ends it."""

NAMED = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pqrun enqueue'"


def job(number: int = 0, **options: Any) -> NewJob:
    return NewJob(job_type="t", payload=f'{{"n": {number}}}', **options)


class Hand:
    """What a Gatherer writes to, driven by the test: each batch stays in flight until it is answered."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.alone: list[int] = []
        self.loud: list[bool] = []
        self.loud_alone: list[bool] = []
        self.announced: list[list[Lane]] = []
        self.answers: asyncio.Queue[BaseException | list[Enqueued | None] | None] = asyncio.Queue()
        self.gatherer = Gatherer(write=self.write, write_alone=self.write_alone, announce=self.announce)

    async def write(self, jobs: Sequence[NewJob], is_loud: bool) -> list[Enqueued | None]:
        numbers = [int(job.payload[6:-1]) for job in jobs]
        self.batches.append(numbers)
        self.loud.append(is_loud)
        answer = await self.answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return [Enqueued(100 + number, created=True) for number in numbers] if answer is None else answer

    async def write_alone(self, job: NewJob, is_loud: bool) -> Enqueued:
        number = int(job.payload[6:-1])
        self.loud_alone.append(is_loud)
        self.alone.append(number)
        return Enqueued(900 + number, created=True)

    async def announce(self, lanes: Sequence[Lane]) -> None:
        self.announced.append(sorted(lanes, key=lambda lane: lane or ("", 0)))

    def defer(self, number: int, **options: Any) -> asyncio.Task[Enqueued]:
        return asyncio.create_task(self.gatherer.enqueue(job(number, **options)))

    def answer(self, answer: BaseException | list[Enqueued | None] | None = None) -> None:
        """Let the batch in flight, or the next one, come to this; None: every job is written."""
        self.answers.put_nowait(answer)

    async def flown(self, count: int = 1) -> None:
        await wait_until(lambda: len(self.batches) >= count)


@pytest.fixture
async def hand() -> AsyncIterator[Hand]:
    made = Hand()
    yield made
    await made.gatherer.close(0.0)


@pytest.fixture
def long_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notifications rest for so long that a test can look at what happens meanwhile."""
    monkeypatch.setattr(gathering, "QUIET_SECONDS", 0.2)


async def first_in_flight(hand: Hand, *numbers: int) -> list[asyncio.Task[Enqueued]]:
    """Defer 0, which goes alone, and then the others, which gather behind it."""
    first = hand.defer(0)
    await hand.flown()
    return [first, *(hand.defer(number) for number in numbers)]


def refusal(error: type[StoreError] = StoreError, sqlstate: str | None = "23514") -> StoreError:
    made = error("the database refused")
    made.sqlstate = sqlstate
    return made


# The gatherer by itself.


async def test_one_that_comes_alone_goes_at_once_and_those_that_come_meanwhile_go_in_one_behind_it(hand: Hand) -> None:
    tasks = await first_in_flight(hand, 1, 2, 3)
    assert hand.batches == [[0]]
    hand.answer()
    await hand.flown(2)
    assert hand.batches == [[0], [1, 2, 3]]
    assert (await tasks[0]).id == 100
    hand.answer()
    assert [(await task).id for task in tasks] == [100, 101, 102, 103]
    assert hand.alone == []


async def test_a_batch_has_a_bound_and_keeps_the_order(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "GATHER_ROWS", 2)
    tasks = await first_in_flight(hand, 1, 2, 3)
    for _ in range(3):
        hand.answer()
    assert [(await task).id for task in tasks] == [100, 101, 102, 103]
    assert hand.batches == [[0], [1, 2], [3]]


@pytest.mark.parametrize(
    "error",
    [
        refusal(),
        refusal(ConflictError, "40P01"),
        refusal(DatabaseUnavailableError, "55P03"),
        refusal(DatabaseUnavailableError, "57014"),
    ],
    ids=lambda error: f"{type(error).__name__}-{error.sqlstate}",
)
async def test_everybody_of_a_batch_that_wrote_nothing_goes_on_alone(
    hand: Hand, long_rest: None, error: StoreError
) -> None:
    tasks = await first_in_flight(hand, 1, 2)
    hand.answer()
    hand.answer(error)
    assert [(await task).id for task in tasks] == [100, 901, 902]


@pytest.mark.parametrize(
    "error",
    [
        refusal(DatabaseUnavailableError, None),
        refusal(DatabaseUnavailableError, "57P01"),
        refusal(SchemaError, "42P01"),
        refusal(StoreError, None),  # of the driver, perhaps after it was written
    ],
    ids=lambda error: f"{type(error).__name__}-{error.sqlstate}",
)
async def test_what_alone_would_not_help_or_may_have_been_written_is_told_to_each_in_an_exception_of_its_own(
    hand: Hand, error: StoreError
) -> None:
    tasks = await first_in_flight(hand, 1, 2)
    hand.answer()
    hand.answer(error)
    await tasks[0]
    heard = await asyncio.gather(*tasks[1:], return_exceptions=True)
    assert [(type(one), str(one)) for one in heard] == [(type(error), str(error))] * 2
    assert [one.sqlstate for one in heard if isinstance(one, StoreError)] == [error.sqlstate] * 2
    assert heard[0] is not heard[1]
    assert hand.alone == []


async def test_a_job_whose_fate_the_batch_does_not_know_goes_on_alone_and_no_other(hand: Hand) -> None:
    tasks = await first_in_flight(hand, 1, 2)
    hand.answer()
    hand.answer([Enqueued(101, created=True), None])
    assert [(await task).id for task in tasks] == [100, 101, 902]


async def test_an_error_that_nobody_expected_reaches_its_callers_and_holds_up_nobody_else(hand: Hand) -> None:
    tasks = await first_in_flight(hand, 1)
    hand.answer(PqrunError("something else"))
    hand.answer(ZeroDivisionError("a defect"))
    with pytest.raises(PqrunError, match="something else"):
        await tasks[0]
    await hand.flown(2)
    last = hand.defer(2)
    with pytest.raises(ZeroDivisionError):
        await tasks[1]
    hand.answer()
    assert (await last).id == 102


async def test_a_flight_that_is_cancelled_by_somebody_else_leaves_nobody_waiting(hand: Hand) -> None:
    tasks = await first_in_flight(hand, 1, 2)
    await asyncio.sleep(0)  # both wait
    (flight,) = (task for task in asyncio.all_tasks() if task.get_name() == "pqrun enqueue")
    flight.cancel()
    with pytest.raises(DatabaseUnavailableError, match="may or may not be there"):
        await tasks[0]
    assert [(await task).id for task in tasks[1:]] == [901, 902]  # these were not on their way
    hand.answer()
    assert (await hand.defer(3)).id == 103


async def test_one_that_is_cancelled_before_it_left_is_not_written(hand: Hand) -> None:
    tasks = await first_in_flight(hand, 1, 2)
    await asyncio.sleep(0)  # both wait
    tasks[1].cancel()
    hand.answer()
    hand.answer()
    assert (await tasks[2]).id == 102
    assert hand.batches == [[0], [2]]


async def test_one_that_is_cancelled_in_flight_harms_no_neighbour(hand: Hand) -> None:
    tasks = await first_in_flight(hand, 1, 2)
    hand.answer()
    await hand.flown(2)
    tasks[1].cancel()
    hand.answer()
    assert (await tasks[2]).id == 102
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]


async def test_the_flight_does_not_die_with_the_task_that_began_it(hand: Hand) -> None:
    tasks = await first_in_flight(hand, 1)
    tasks[0].cancel()
    await asyncio.wait({tasks[0]})
    hand.answer()
    hand.answer()
    assert (await tasks[1]).id == 101


async def test_a_flight_knows_nothing_of_the_context_of_the_caller_that_began_it() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")
    seen = []

    async def write(jobs: Sequence[NewJob], is_loud: bool) -> list[Enqueued | None]:
        seen.append(variable.get())
        return [Enqueued(1, created=True) for _ in jobs]

    async def announce(lanes: Sequence[Lane]) -> None:
        seen.append(variable.get())

    gatherer = Gatherer(write=write, write_alone=Hand().write_alone, announce=announce)
    variable.set("mine")
    await gatherer.enqueue(job())
    await gatherer.enqueue(job())
    await wait_until(lambda: len(seen) == 3)
    assert seen == ["nobody's"] * 3
    assert variable.get() == "mine"
    await gatherer.close(1.0)


# Notifications, by the gatherer.


async def test_of_a_burst_the_first_and_the_trailing_notification_remain(hand: Hand, long_rest: None) -> None:
    for number in range(5):
        hand.answer()
        await hand.defer(number)
    assert hand.loud == [True, False, False, False, False]
    assert hand.announced == []
    await wait_until(lambda: hand.announced)
    assert hand.announced == [[("default", 0)]]
    hand.answer()
    await hand.defer(5)
    assert hand.loud[5:] == [False]  # the trailing one counts as one
    await wait_until(lambda: len(hand.announced) == 2)


async def test_each_lane_is_announced_for_itself(hand: Hand, long_rest: None) -> None:
    lanes: list[dict[str, Any]] = [{}, {"queue": "other"}, {"priority": 3}]
    for options in lanes * 2:
        hand.answer()
        await hand.defer(0, **options)
    assert hand.loud == [True] * 3 + [False] * 3
    await wait_until(lambda: hand.announced)
    assert hand.announced == [[("default", 0), ("default", 3), ("other", 0)]]


async def test_jobs_for_later_are_announced_as_a_lane_of_their_own(hand: Hand, long_rest: None) -> None:
    for _ in range(3):
        hand.answer()
        await hand.defer(0, delay_seconds=60.0)
    hand.answer()
    await hand.defer(0)
    assert hand.loud == [True, False, False, True]
    await wait_until(lambda: hand.announced)
    assert hand.announced == [[None]]


@pytest.mark.parametrize("sqlstate", ["55P03", "57014"])
async def test_a_batch_that_may_have_met_the_lock_of_notify_goes_again_without_a_word(
    hand: Hand, long_rest: None, sqlstate: str
) -> None:
    hand.answer(refusal(DatabaseUnavailableError, sqlstate))
    hand.answer()
    assert (await hand.defer(0)).id == 100
    assert hand.loud == [True, False]
    assert hand.alone == []
    await wait_until(lambda: hand.announced)
    assert hand.announced == [[("default", 0)]]


async def test_a_job_for_later_that_may_have_met_the_lock_of_notify_goes_again_without_a_word(
    hand: Hand, long_rest: None
) -> None:
    tasks = [hand.defer(0, delay_seconds=60.0), hand.defer(1)]
    hand.answer(refusal(DatabaseUnavailableError, "55P03"))
    hand.answer()
    assert [(await task).id for task in tasks] == [100, 101]
    assert hand.loud == [True, False]
    await wait_until(lambda: hand.announced)
    assert hand.announced == [[None, ("default", 0)]]


async def test_those_who_go_on_alone_have_one_notification_behind_them(hand: Hand, long_rest: None) -> None:
    tasks = [hand.defer(number) for number in range(3)] + [hand.defer(3, delay_seconds=60.0)]
    hand.answer(refusal())
    assert [(await task).id for task in tasks] == [900, 901, 902, 903]
    assert hand.loud_alone == [False] * 4
    await wait_until(lambda: hand.announced)
    assert hand.announced == [[None, ("default", 0)]]


async def test_lanes_are_not_remembered_without_bound(
    hand: Hand, long_rest: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "LANES_MAX", 2)
    for number in range(4):
        hand.answer()
        await hand.defer(0, queue=f"q{number}")
    hand.answer()
    await hand.defer(0, queue="q0")
    assert hand.loud[-1]


async def test_an_announcement_that_fails_is_made_again(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    async def announce(lanes: Sequence[Lane]) -> None:
        tries.append(sorted(lanes, key=lambda lane: lane or ("", 0)))
        if len(tries) == 1:
            raise DatabaseUnavailableError("the connection is gone")

    monkeypatch.setattr(hand.gatherer, "_announce", announce)
    for number in range(2):
        hand.answer()
        await hand.defer(number)
    await wait_until(lambda: len(tries) == 2)
    assert tries == [[("default", 0)]] * 2


# Closing the gatherer.


async def test_close_lets_arrive_what_is_on_its_way_and_what_waits_behind_it(hand: Hand) -> None:
    tasks = await first_in_flight(hand, 1, 2)
    await asyncio.sleep(0)  # both wait
    hand.answer()
    hand.answer()
    await hand.gatherer.close(30)
    assert [task.result().id for task in tasks] == [100, 101, 102]
    with pytest.raises(NotOpenError):
        await hand.gatherer.enqueue(job())


async def test_close_cuts_off_what_takes_too_long_and_tells_each_what_may_have_become_of_it(hand: Hand) -> None:
    tasks = await first_in_flight(hand, 1)
    await asyncio.sleep(0)  # it waits
    await hand.gatherer.close(0.01)
    with pytest.raises(DatabaseUnavailableError, match="may or may not be there"):
        await tasks[0]
    with pytest.raises(NotOpenError, match="closed before this job was written"):
        await tasks[1]
    assert hand.alone == []


async def test_close_announces_a_lane_that_was_not_told_yet(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "QUIET_SECONDS", 600.0)
    for number in range(2):
        hand.answer()
        await hand.defer(number)
    await hand.gatherer.close(30)
    assert hand.announced == [[("default", 0)]]


# On a database.


@pytest.fixture(params=["dsn", "pool"])
async def producer(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[PgJobStore]:
    """A store with connections of its own, and one on a handed-in pool."""
    if request.param == "dsn":
        async with PgJobStore(dsn) as opened:
            yield opened
        return
    async with asyncpg.create_pool(dsn, min_size=0, max_size=6) as pool, PgJobStore(pool=pool) as opened:
        yield opened


async def defer_together(store: PgJobStore, payloads: Sequence[dict[str, object]], **options: Any) -> list[Any]:
    """Defer them all at once; ids and errors, in order."""
    return await asyncio.gather(
        *(store.enqueue("t", payload, **options) for payload in payloads), return_exceptions=True
    )


async def test_what_is_deferred_together_is_written_together_and_each_gets_its_own_id(
    producer: PgJobStore, connection: asyncpg.Connection
) -> None:
    ids = await defer_together(producer, [{"n": n} for n in range(50)])
    rows = await connection.fetch("SELECT id, (payload->>'n')::int AS n, xmin::text FROM pqrun.jobs ORDER BY id")
    assert [row["id"] for row in rows] == ids
    assert [row["n"] for row in rows] == list(range(50))
    assert len({row["xmin"] for row in rows}) == 1


async def test_a_job_that_the_database_refuses_harms_no_neighbour(
    producer: PgJobStore, connection: asyncpg.Connection
) -> None:
    await connection.execute(REFUSE_BAD)
    heard = await defer_together(producer, [{"n": 0}, {"bad": "secret"}, {"n": 1}])
    assert [type(one) for one in heard] == [int, StoreError, int]
    assert "not_bad" in str(heard[1])
    assert "secret" not in said_by(heard[1])
    rows = await connection.fetch("SELECT id, payload FROM pqrun.jobs ORDER BY id")
    assert {row["id"]: row["payload"] for row in rows} == {heard[0]: '{"n": 0}', heard[2]: '{"n": 1}'}


@pytest.mark.parametrize("commits", [True, False])
async def test_a_key_in_somebody_elses_open_transaction_holds_up_its_own_caller_only(
    dsn: str, producer: PgJobStore, connection: asyncpg.Connection, commits: bool
) -> None:
    async with connected(dsn) as other:
        transaction = other.transaction()
        await transaction.start()
        theirs = await producer.enqueue("t", {}, dedupe_key="k", connection=other)
        keyed = asyncio.create_task(producer.enqueue_jobs([job(dedupe_key="k")]))
        neighbours = await defer_together(producer, [{"n": n} for n in range(5)])
        assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE id = ANY ($1)", neighbours) == 5
        assert [type(one) for one in await defer_together(producer, [{"n": 5}])] == [int]  # and those after it
        assert not keyed.done()
        await (transaction.commit() if commits else transaction.rollback())
        ((found,),) = [await keyed]
    assert found.created is not commits
    assert (found.id == theirs) is commits
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE dedupe_key = 'k'") == 1
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 7


async def test_a_table_that_is_locked_for_a_while_holds_up_everybody_and_loses_nobody(
    dsn: str, producer: PgJobStore, connection: asyncpg.Connection
) -> None:
    await producer.enqueue("t", {})
    async with holding(dsn, "LOCK TABLE pqrun.jobs_active IN ACCESS EXCLUSIVE MODE"):
        deferring = asyncio.create_task(defer_together(producer, [{"n": n} for n in range(30)]))
        await wait_until_waiting(connection, 2)  # more than the one connection of the batch: they go alone
        assert not deferring.done()
    ids = await deferring
    rows = await connection.fetch("SELECT id, (payload->>'n')::int AS n FROM pqrun.jobs WHERE payload ? 'n'")
    assert {row["id"]: row["n"] for row in rows} == dict(zip(ids, range(30), strict=True))
    assert len(rows) == 30


async def test_a_batch_whose_keys_cannot_be_looked_up_writes_nothing_twice(
    store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look-up follows the insert in a transaction of its own: when it fails, the insert has committed."""
    first = await store.enqueue("t", {}, dedupe_key="k")
    texts = {name: store.statements[name] for name in store.statements.names()}
    fails_there = " WHERE 1 / (current_setting('application_name') <> 'pqrun enqueue')::int = 1"
    texts["find_active"] = texts["find_active"].rstrip() + fails_there
    monkeypatch.setattr(store.statements, "_texts", texts)
    *fresh, (keyed,) = await asyncio.gather(
        *(store.enqueue_jobs([job(n)]) for n in range(5)), store.enqueue_jobs([job(dedupe_key="k")])
    )
    assert keyed == Enqueued(first, created=False)
    rows = await connection.fetch("SELECT id FROM pqrun.jobs WHERE dedupe_key IS NULL ORDER BY id")
    assert [row["id"] for row in rows] == [one.id for (one,) in fresh]


async def test_a_caller_cancelled_before_its_job_left_writes_nothing(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await store.enqueue("t", {"n": 0})
    task = asyncio.create_task(store.enqueue("t", {"n": 1}))
    await asyncio.sleep(0)  # it waits for the flight, which has not begun
    task.cancel()
    neighbour = await store.enqueue("t", {"n": 2})
    rows = await connection.fetch("SELECT (payload->>'n')::int AS n FROM pqrun.jobs ORDER BY id")
    assert [row["n"] for row in rows] == [0, 2]
    assert (await store.get(neighbour)) is not None


async def test_a_caller_cancelled_in_flight_harms_no_neighbour(
    dsn: str, producer: PgJobStore, connection: asyncpg.Connection
) -> None:
    await producer.enqueue("t", {})
    async with holding(dsn, "LOCK TABLE pqrun.jobs_active IN ACCESS EXCLUSIVE MODE"):
        tasks = [asyncio.create_task(producer.enqueue("t", {"n": n})) for n in range(10)]
        await wait_until_waiting(connection)
        for task in tasks[::2]:
            task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(one) for one in ended[::2]} == {asyncio.CancelledError}
    rows = await connection.fetch("SELECT id FROM pqrun.jobs WHERE (payload->>'n')::int % 2 = 1 ORDER BY id")
    assert [row["id"] for row in rows] == sorted(one for one in ended[1::2] if isinstance(one, int))
    assert len(rows) == 5


async def test_equal_keys_of_one_batch_make_one_row(producer: PgJobStore, connection: asyncpg.Connection) -> None:
    await producer.enqueue("t", {})
    found = await asyncio.gather(*(producer.enqueue_jobs([job(n, dedupe_key="k")]) for n in range(20)))
    assert len({one.id for (one,) in found}) == 1
    assert sum(one.created for (one,) in found) == 1
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE dedupe_key = 'k'") == 1


async def test_batches_that_deadlock_are_written_in_the_end(
    dsn: str, producer: PgJobStore, connection: asyncpg.Connection
) -> None:
    """A refusal that PostgreSQL takes back when it is repeated: the first three inserts are told that they deadlocked."""
    await connection.execute("""
        CREATE SEQUENCE pqrun.tries;
        CREATE FUNCTION pqrun.collide() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF nextval('pqrun.tries') <= 3 THEN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01'; END IF;
                RETURN NULL;
            END $$;
        CREATE TRIGGER collide AFTER INSERT ON pqrun.jobs_active FOR EACH STATEMENT EXECUTE FUNCTION pqrun.collide();
    """)
    ids = await defer_together(producer, [{"n": n} for n in range(4)])
    assert [row["id"] for row in await connection.fetch("SELECT id FROM pqrun.jobs ORDER BY id")] == ids
    assert await connection.fetchval("SELECT last_value FROM pqrun.tries") == 4


# Notifications on a database.


async def test_a_burst_has_fewer_notifications_than_jobs_and_one_after_the_last(
    dsn: str, producer: PgJobStore, connection: asyncpg.Connection, long_rest: None
) -> None:
    async with hearing(dsn) as heard:
        for number in range(20):
            await producer.enqueue("t", {"n": number})
        await defer_together(producer, [{"n": n} for n in range(20, 60)])
        before = len(await heard.until_now())
        await heard.wait_for(before + 1)
        assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 60
        assert set(heard.messages) == {"ready:0:default"}
        assert len(heard.messages) < 20


async def test_each_lane_has_its_own_notification_and_so_have_those_for_later(
    dsn: str, producer: PgJobStore, long_rest: None
) -> None:
    jobs = [job(), job(queue="a:b"), job(priority=-2), job(delay_seconds=60.0), job(delay_seconds=90.0)]
    async with hearing(dsn) as heard:
        for one in jobs:
            await producer.enqueue_jobs([one])
        messages = sorted(await heard.until_now())
        assert messages[1:] == ["ready:-2:default", "ready:0:a:b", "ready:0:default"]
        assert messages[0].startswith("due:")  # the first of them, with its time
        await heard.wait_for(5)
        assert heard.messages[-1] == "due:0"  # and a word for all that followed


async def test_an_idle_worker_learns_when_a_job_is_due_that_was_written_without_a_word(
    dsn: str, producer: PgJobStore, connection: asyncpg.Connection, long_rest: None
) -> None:
    counted = Counted()
    async with working(PgJobStore(dsn), {"t": counted.quick}, idle_policy=Rarely()) as crew:
        await crew.heard.wait_for(events.WorkerStarted)
        await counted.wait_started(await producer.enqueue("t", {}))
        await producer.enqueue_jobs([job(delay_seconds=3600.0)])  # announced with its time
        await producer.enqueue_jobs([job(delay_seconds=0.5)])  # not announced by itself
        last = await connection.fetchval("SELECT max(id) FROM pqrun.jobs")
        await counted.wait_started(last)


class Rarely(IdlePollPolicy):
    """So long that only a notification can start a job in time."""

    def next_sleep(self, empty_streak: int) -> float:
        return 600.0


async def test_an_idle_worker_starts_the_last_job_of_a_burst_by_the_trailing_notification(
    dsn: str, producer: PgJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "QUIET_SECONDS", 1.0)
    counted = Counted()
    async with working(PgJobStore(dsn), {"t": counted.quick}, idle_policy=Rarely()) as crew:
        await crew.heard.wait_for(events.WorkerStarted)
        await counted.wait_started(await producer.enqueue("t", {}))
        async with hearing(dsn) as heard:
            last = await producer.enqueue("t", {})
            assert await heard.until_now() == []
            assert not counted.starts[last]  # nothing but the notification to come tells of it
            await counted.wait_started(last)
            assert "ready:0:default" in await heard.until_now()


# Closing a store.


async def test_what_is_on_its_way_arrives_when_the_store_closes(dsn: str, connection: asyncpg.Connection) -> None:
    store = PgJobStore(dsn)
    await store.start()
    await store.enqueue("t", {})
    tasks = [asyncio.create_task(store.enqueue("t", {"n": n})) for n in range(20)]
    await asyncio.sleep(0)  # all wait
    await store.close()
    ids = await asyncio.gather(*tasks)
    assert [row["id"] for row in await connection.fetch("SELECT id FROM pqrun.jobs ORDER BY id")][1:] == ids
    with pytest.raises(NotOpenError):
        await store.enqueue("t", {})


async def test_what_must_go_on_alone_arrives_when_the_store_closes(dsn: str, connection: asyncpg.Connection) -> None:
    store = PgJobStore(dsn)
    await store.start()
    await store.enqueue("t", {})
    async with holding(dsn, "LOCK TABLE pqrun.jobs_active IN ACCESS EXCLUSIVE MODE"):
        tasks = [asyncio.create_task(store.enqueue("t", {"n": n})) for n in range(20)]
        await wait_until_waiting(connection)
        closing = asyncio.create_task(store.close())
        await wait_until_waiting(connection, 2)
    await closing
    ids = await asyncio.gather(*tasks)
    rows = await connection.fetch("SELECT id FROM pqrun.jobs WHERE payload ? 'n'")
    assert sorted(row["id"] for row in rows) == sorted(ids)


async def test_what_cannot_arrive_in_time_holds_up_no_close_and_hears_of_it(dsn: str) -> None:
    store = PgJobStore(dsn)
    await store.start()
    await store.enqueue("t", {})
    async with connected(dsn) as other, other.transaction():
        await store.enqueue("t", {}, dedupe_key="k", connection=other)
        keyed = asyncio.create_task(store.enqueue("t", {}, dedupe_key="k"))
        await wait_until_waiting(other)
        began = time.monotonic()
        await store.close(timeout=2)
        assert time.monotonic() - began < 2 + 2  # the limit, and what a slow machine takes beside it
        with pytest.raises(DatabaseUnavailableError):
            await keyed


async def test_a_store_that_closes_announces_what_was_not_told_yet(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "QUIET_SECONDS", 600.0)
    async with hearing(dsn) as heard:
        async with PgJobStore(dsn) as store:
            for _ in range(2):
                await store.enqueue("t", {})
            assert await heard.until_now() == ["ready:0:default"]
        assert await heard.until_now() == ["ready:0:default"] * 2


# A connection that is lost.


async def end_backend(connection: asyncpg.Connection) -> None:
    """Terminate the connection that jobs are gathered on, and wait until it is gone."""
    (row,) = await connection.fetch(NAMED)
    await connection.execute("SELECT pg_terminate_backend($1)", row["pid"])

    async def is_gone() -> bool:
        return not await connection.fetchval(f"SELECT count(*) FROM ({NAMED}) a WHERE pid = $1", row["pid"])

    await wait_until(is_gone)


async def test_a_connection_that_is_terminated_while_it_is_idle_is_replaced(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    for _ in range(3):
        await store.enqueue("t", {})
        kept: Any = getattr(store._producer._link, "_connection")  # noqa: B009  # a kept link has one, says no protocol
        await end_backend(connection)
        await wait_until(kept.is_closed)  # the driver has read that the server's side is gone
    await store.enqueue("t", {})
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 4


async def test_a_connection_that_is_terminated_in_flight_is_told_to_each_and_replaced(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await connection.execute(SLOW_TRIGGER)
    await store.enqueue("t", {})
    deferring = asyncio.create_task(defer_together(store, [{"slow": 1}, {"n": 1}, {"n": 2}]))

    async def is_in_flight() -> bool:
        return bool(
            await connection.fetchval(
                f"SELECT count(*) FROM pg_stat_activity WHERE pid IN ({NAMED}) AND wait_event = 'PgSleep'"
            )
        )

    await wait_until(is_in_flight)
    await end_backend(connection)
    heard = await deferring
    assert [type(one) for one in heard] == [DatabaseUnavailableError] * 3
    assert len({id(one) for one in heard}) == 3
    again = await store.enqueue("t", {"n": 3})
    rows = await connection.fetch("SELECT id FROM pqrun.jobs WHERE payload ? 'n'")
    assert [row["id"] for row in rows] == [again]


# A pool that was handed in.


async def leave_as_it_is(_: object) -> None:
    """What a pool does not reset would stay behind."""


async def test_a_handed_in_pool_has_all_its_connections_as_they_were_while_nothing_is_deferred(dsn: str) -> None:
    async with (
        asyncpg.create_pool(dsn, min_size=0, max_size=1, reset=leave_as_it_is) as pool,
        PgJobStore(pool=pool) as store,
    ):
        await store.enqueue("t", {})
        await defer_together(store, [{"n": n} for n in range(20)])
        await defer_together(store, [{"n": n} for n in range(20)], dedupe_key="k")
        async with pool.acquire(timeout=10) as only:  # jit is changed by the driver itself, where it asks for types
            query = "SELECT count(*) FROM pg_settings WHERE name = ANY ($1) AND setting <> reset_val"
            assert await only.fetchval(query, ["lock_timeout", "statement_timeout", "enable_seqscan"]) == 0
