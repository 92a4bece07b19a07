"""The settler: each outcome is written once, whatever the database does meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest

from pqrun.errors import ConflictError, DatabaseUnavailableError, StoreError
from pqrun.job import outcome as outcomes
from pqrun.job.outcome import Outcome
from pqrun.job.policy import LoopErrorPolicy
from pqrun.job.record import Claim, Job
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.run.events import Events
from pqrun.run.settle import AWAITED_MAX, PENDING_MAX, SETTLE_ROWS, Settler
from pqrun.store import PgJobStore
from pqrun.store.settling import Settled
from pqrun.store.work import WorkStore
from tests.run.making import claim_of, make_job
from tests.support import rows
from tests.support.waiting import Recorder, wait_until

STATUS_OF: dict[type, Status] = {
    outcomes.Done: Status.DONE,
    outcomes.Retrying: Status.SCHEDULED,
    outcomes.Failed: Status.FAILED,
    outcomes.Released: Status.READY,
    outcomes.Snoozed: Status.SCHEDULED,
    outcomes.Cancelled: Status.CANCELLED,
}


class Ledger:
    """Stands for the store: writes each claim once; may fail before or after the write, or refuse a certain outcome."""

    def __init__(self) -> None:
        self.batches: list[list[Outcome]] = []
        self.awaited: list[list[int]] = []
        self.written: dict[Claim, Outcome] = {}
        self.gone: set[Claim] = set()  # claims that were lost before
        self.cancelled: set[Claim] = set()
        self.before: list[Exception] = []
        self.after: list[Exception] = []
        self.looks: list[Exception] = []
        self.refuses: Callable[[Outcome], bool] = lambda _: False
        self.gate: asyncio.Event | None = None

    async def settle(self, outcomes: list[Outcome], awaited: list[int]) -> list[Settled]:
        self.batches.append(list(outcomes))
        self.awaited.append(list(awaited))
        if self.gate is not None:
            await self.gate.wait()
        if self.before:
            raise self.before.pop(0)
        if any(self.refuses(outcome) for outcome in outcomes):
            raise StoreError("the database refused: invalid byte sequence (SQLSTATE 22021)")
        held = [o for o in outcomes if o.claim not in self.gone and o.claim not in self.written]
        for outcome in held:
            self.written[outcome.claim] = outcome
        if self.after:
            raise self.after.pop(0)
        return [Settled(o.claim, self._status(o), 5.0 if isinstance(o, _RETRYING) else None) for o in held]

    async def find_claim(self, claim: Claim) -> Status | None:
        if self.looks:
            raise self.looks.pop(0)
        outcome = self.written.get(claim)
        if outcome is None or isinstance(outcome, (*_RETRYING, outcomes.Released)):
            return None  # what went back to waiting leaves no trace of its claim
        return self._status(outcome)

    def _status(self, outcome: Outcome) -> Status:
        return Status.CANCELLED if outcome.claim in self.cancelled else STATUS_OF[type(outcome)]


_RETRYING = (outcomes.Retrying, outcomes.Snoozed)


class Book:
    """A running settler with its ledger."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.events = Events()
        self.heard = Recorder(self.events)
        self.due: list[float] = []
        self.settler = Settler(self.ledger, events=self.events, policy=LoopErrorPolicy(), on_due=self.due.append)

    def submit(self, *jobs: Job) -> None:
        for job in jobs:
            self.settler.submit(job, done(job))

    async def flushed(self) -> None:
        assert await self.settler.wait_flushed(30)


@pytest.fixture
async def book() -> AsyncIterator[Book]:
    opened = Book()
    async with settling(opened):
        yield opened


@asynccontextmanager
async def settling(book: Book) -> AsyncIterator[None]:
    book.settler.service.start()
    try:
        yield
    finally:
        assert await book.settler.service.stop(30)


def done(job: Job) -> outcomes.Done:
    return outcomes.Done(claim_of(job), 3, None)


def ids(batch: list[Outcome]) -> list[int]:
    return [outcome.claim.job_id for outcome in batch]


async def test_an_outcome_is_written_and_told(book: Book) -> None:
    job = make_job()
    book.submit(job)
    await book.flushed()
    assert book.ledger.written == {claim_of(job): done(job)}
    assert book.heard.seen == [events.Done(job, 3)]


async def test_each_kind_of_outcome_has_its_event(book: Book) -> None:
    jobs = [make_job(number) for number in range(1, 6)]
    claims = [claim_of(job) for job in jobs]
    error = "Traceback\n  File x\nValueError: a\x1b[31mb\n"
    handed_in: list[Outcome] = [
        outcomes.Retrying(claims[0], 1, error, 5.0),
        outcomes.Failed(claims[1], 1, error),
        outcomes.Released(claims[2], started=True, counted=False),
        outcomes.Released(claims[3], started=False, counted=False),
        outcomes.Cancelled(claims[4], 1),
    ]
    for job, outcome in zip(jobs, handed_in, strict=True):
        book.settler.submit(job, outcome)
    await book.flushed()
    assert book.heard.seen == [
        events.Retrying(jobs[0], "ValueError: a\\x1b[31mb", 5.0, 1),
        events.Failed(jobs[1], "ValueError: a\\x1b[31mb", 1),
        events.Released(jobs[2], True),
        events.Released(jobs[3], False),
        events.JobCancelled(jobs[4], 1),
    ]
    assert book.due == [5.0]


async def test_outcomes_gather_while_one_settle_is_in_flight(book: Book) -> None:
    book.ledger.gate = asyncio.Event()
    book.submit(make_job(1))
    await wait_until(lambda: book.ledger.batches)
    for number in range(2, 50):
        book.submit(make_job(number))
        await asyncio.sleep(0)
    assert len(book.ledger.batches) == 1
    assert book.settler.backlog == 49
    book.ledger.gate.set()
    await book.flushed()
    assert [ids(batch) for batch in book.ledger.batches] == [[1], list(range(2, 50))]


async def test_one_statement_takes_a_bounded_number(book: Book) -> None:
    book.submit(*(make_job(number) for number in range(1, SETTLE_ROWS + 11)))
    await book.flushed()
    assert [len(batch) for batch in book.ledger.batches] == [SETTLE_ROWS, 10]


async def test_too_many_unwritten_outcomes_are_told_as_a_full_backlog() -> None:
    book = Book()  # never started: nothing is written
    book.submit(*(make_job(number) for number in range(PENDING_MAX - 1)))
    assert not book.settler.is_full
    book.submit(make_job(PENDING_MAX))
    assert book.settler.is_full


async def test_while_the_database_is_away_the_same_batch_is_tried_again(book: Book) -> None:
    book.ledger.before = [DatabaseUnavailableError("gone"), DatabaseUnavailableError("gone"), ConflictError("busy")]
    book.submit(make_job(1), make_job(2))
    await wait_until(lambda: book.heard.of(events.LoopFailed))
    book.submit(make_job(3))
    await book.flushed()
    assert [ids(batch) for batch in book.ledger.batches] == [[1, 2]] * 4 + [[3]]
    assert [event.job.id for event in book.heard.of(events.Done)] == [1, 2, 3]
    assert not book.heard.of(events.ClaimLost)


async def test_a_claim_that_does_not_come_back_was_lost(book: Book) -> None:
    lost, held = make_job(1), make_job(2)
    book.ledger.gone = {claim_of(lost)}
    book.submit(lost, held)
    await book.flushed()
    assert book.heard.seen == [events.ClaimLost(lost), events.Done(held, 3)]


@pytest.mark.parametrize(
    ("outcome", "event"),
    [
        (outcomes.Done, events.Done),
        (outcomes.Failed, events.Failed),
        (outcomes.Retrying, events.Retrying),
        (outcomes.Released, events.Released),
        (outcomes.Snoozed, events.PutAside),
    ],
)
async def test_a_write_that_was_in_doubt_and_had_succeeded_is_told_as_written(
    book: Book, outcome: type[Outcome], event: type[events.Event]
) -> None:
    job = make_job()
    claim = claim_of(job)
    made: dict[type, Outcome] = {
        outcomes.Done: outcomes.Done(claim, 3, None),
        outcomes.Failed: outcomes.Failed(claim, 3, "x"),
        outcomes.Retrying: outcomes.Retrying(claim, 3, "x", 5.0),
        outcomes.Released: outcomes.Released(claim, started=True, counted=False),
        outcomes.Snoozed: outcomes.Snoozed(claim, "x", 5.0),
    }
    book.ledger.after = [DatabaseUnavailableError("the connection broke")]
    book.settler.submit(job, made[outcome])
    await book.flushed()
    assert [type(e) for e in book.heard.seen] == [events.LoopFailed, event, events.LoopResumed]


async def test_a_snooze_is_told_with_its_number_and_its_reason_on_one_line(book: Book) -> None:
    job = make_job(snoozes=4)
    claim = claim_of(job)
    book.settler.submit(job, outcomes.Snoozed(claim, None, 5.0, is_chosen=True, reason="closed\nuntil " + "x" * 1_000))
    await book.flushed()
    (told,) = book.heard.of(events.Snoozed)
    assert (told.job, told.delay_seconds, told.snoozes) == (job, 5.0, 5)
    assert told.reason is not None
    assert told.reason.startswith("closed\\nuntil xxx")
    assert len(told.reason) < 250
    assert book.due == [5.0]  # the worker wakes for it


async def test_a_cancel_that_was_written_in_doubt_is_told_as_a_cancel(book: Book) -> None:
    job = make_job()
    book.ledger.cancelled = {claim_of(job)}
    book.ledger.after = [DatabaseUnavailableError("the connection broke")]
    book.submit(job)
    await book.flushed()
    assert [told.job for told in book.heard.of(events.JobCancelled)] == [job]


async def test_a_write_in_doubt_whose_claim_was_lost_is_told_as_lost(book: Book) -> None:
    job = make_job()
    book.ledger.gone = {claim_of(job)}
    book.ledger.before = [DatabaseUnavailableError("gone")]
    book.submit(job)
    await book.flushed()
    assert book.heard.of(events.ClaimLost) == [events.ClaimLost(job)]


@pytest.mark.parametrize("by_us", [outcomes.Done, outcomes.Retrying, outcomes.Released])
async def test_a_write_in_doubt_whose_job_a_reaper_has_failed_meanwhile_is_told_as_lost(
    book: Book, by_us: type[Outcome]
) -> None:
    job = make_job()
    claim = claim_of(job)
    made: dict[type, Outcome] = {
        outcomes.Done: outcomes.Done(claim, 3, None),
        outcomes.Retrying: outcomes.Retrying(claim, 3, "x", 5.0),
        outcomes.Released: outcomes.Released(claim, started=True, counted=False),
    }
    book.ledger.written[claim] = outcomes.Failed(claim, None, "lost its worker 5 times")
    book.ledger.before = [DatabaseUnavailableError("gone")]
    book.settler.submit(job, made[by_us])
    await book.flushed()
    assert [type(e) for e in book.heard.seen] == [events.LoopFailed, events.ClaimLost, events.LoopResumed]


async def test_a_database_that_goes_away_during_the_look_back_loses_no_event_and_tells_none_twice(book: Book) -> None:
    jobs = [make_job(number) for number in range(1, 4)]
    book.ledger.after = [DatabaseUnavailableError("the connection broke")]
    book.ledger.looks = [DatabaseUnavailableError("again"), DatabaseUnavailableError("and again")]
    book.submit(*jobs)
    await book.flushed()
    assert book.heard.of(events.Done) == [events.Done(job, 3) for job in jobs]
    assert not book.heard.of(events.ClaimLost)


async def test_an_outcome_that_cannot_be_stored_fails_its_job_and_its_neighbours_are_written(book: Book) -> None:
    jobs = [make_job(number) for number in range(1, 4)]
    bad = claim_of(jobs[1])
    book.ledger.refuses = lambda outcome: outcome.claim == bad and isinstance(outcome, outcomes.Done)
    book.submit(*jobs)
    await book.flushed()
    assert {claim.job_id: type(o) for claim, o in book.ledger.written.items()} == {
        1: outcomes.Done,
        2: outcomes.Failed,
        3: outcomes.Done,
    }
    failed = book.ledger.written[bad]
    assert isinstance(failed, outcomes.Failed)
    assert "could not be stored" in failed.error
    assert [type(e) for e in book.heard.seen] == [events.Done, events.Failed, events.Done]


async def test_a_database_that_goes_away_while_one_is_looked_for_repeats_no_event(book: Book) -> None:
    jobs = [make_job(number) for number in range(1, 4)]
    bad = claim_of(jobs[2])
    failures = [DatabaseUnavailableError("gone")]

    def refuses(outcome: Outcome) -> bool:
        if outcome.claim == claim_of(jobs[1]) and claim_of(jobs[0]) in book.ledger.written and failures:
            raise failures.pop()
        return outcome.claim == bad and isinstance(outcome, outcomes.Done)

    book.ledger.refuses = refuses
    book.submit(*jobs)
    await book.flushed()
    assert not book.heard.of(events.ClaimLost)
    assert [event.job.id for event in book.heard.of(events.Done)] == [1, 2]
    assert [event.job.id for event in book.heard.of(events.Failed)] == [3]


async def test_a_job_whose_every_outcome_is_refused_holds_up_nobody(book: Book) -> None:
    bad, good = make_job(1), make_job(2)
    book.ledger.refuses = lambda outcome: outcome.claim == claim_of(bad)  # a trigger of the user's, say
    book.submit(bad, good)
    await asyncio.wait_for(book.flushed(), 5)
    assert [event.job for event in book.heard.of(events.Done)] == [good]
    (told,) = book.heard.of(events.LoopFailed)
    assert "job 1" in told.error
    book.submit(make_job(3))
    await book.flushed()
    assert len(book.heard.of(events.Done)) == 2


async def test_waiting_for_the_write_ends_when_it_is_written_or_lost(book: Book) -> None:
    held, lost = make_job(1), make_job(2)
    book.ledger.gone = {claim_of(lost)}
    book.ledger.gate = asyncio.Event()
    waits = [asyncio.create_task(book.settler.submit_and_wait(job, done(job))) for job in (held, lost)]
    await wait_until(lambda: book.ledger.batches)
    assert not any(wait.done() for wait in waits)
    book.ledger.gate.set()
    await asyncio.wait_for(asyncio.gather(*waits), 30)


async def test_a_waiter_that_was_cancelled_disturbs_nothing(book: Book) -> None:
    book.ledger.gate = asyncio.Event()
    job = make_job()
    wait = asyncio.create_task(book.settler.submit_and_wait(job, done(job)))
    await wait_until(lambda: book.ledger.batches)
    wait.cancel()
    await asyncio.wait({wait})
    book.ledger.gate.set()
    await book.flushed()
    assert book.heard.seen == [events.Done(job, 3)]


async def test_a_flush_of_nothing_is_over_at_once_and_one_without_database_ends_in_time(book: Book) -> None:
    assert await book.settler.wait_flushed(0)
    book.ledger.gate = asyncio.Event()
    book.submit(make_job())
    assert not await book.settler.wait_flushed(0.02)
    book.ledger.gate.set()
    await book.flushed()


async def test_ids_that_somebody_waits_for_are_announced_and_no_others(book: Book) -> None:
    book.settler.await_ids([2, 77])
    book.submit(make_job(1), make_job(2))
    await book.flushed()
    assert book.ledger.awaited == [[2]]


async def test_an_announcement_is_forgotten_after_its_time(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pqrun.run.settle.AWAITED_SECONDS", -1.0)
    book.settler.await_ids([1])
    book.submit(make_job(1))
    await book.flushed()
    assert book.ledger.awaited == [[]]


async def test_announcements_are_bounded_and_the_newest_stay(book: Book) -> None:
    book.settler.await_ids([1])
    book.settler.await_ids(list(range(10, 10 + AWAITED_MAX)))
    book.submit(make_job(1), make_job(9 + AWAITED_MAX))
    await book.flushed()
    assert book.ledger.awaited == [[9 + AWAITED_MAX]]


async def test_what_the_first_of_two_statements_wrote_is_not_told_as_lost_when_the_database_refuses_the_second(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    worker = await rows.make_worker(connection)
    ids = [await rows.make_job(connection, status=Status.RUNNING, worker=worker) for _ in range(2)]
    await connection.execute("UPDATE pqrun.jobs SET cancel_requested_at = clock_timestamp() WHERE id = $1", ids[1])
    await connection.execute("""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON pqrun.attempts FOR EACH ROW EXECUTE FUNCTION refuse()
    """)
    told = Events()
    heard = Recorder(told)
    work = WorkStore(store, worker_id="w")
    settler = Settler(work, events=told, policy=LoopErrorPolicy(), on_due=lambda _: None)
    for job_id in ids:
        claim_id = await connection.fetchval("SELECT claim_id FROM pqrun.jobs WHERE id = $1", job_id)
        settler.submit(job := make_job(job_id, claim_id=claim_id), done(job))
    settler.service.start()
    assert await settler.wait_flushed(30)
    await settler.service.stop(30)
    await work.close(1.0)
    assert await connection.fetchval("SELECT status FROM pqrun.jobs WHERE id = $1", ids[0]) == "DONE"
    assert [event.job.id for event in heard.of(events.Done)] == [ids[0]]
    assert not heard.of(events.ClaimLost)
