"""settle.sql: what became of claimed jobs, fenced by claim, and a cancel request above all."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from pqrun.errors import StoreError
from pqrun.job.outcome import Cancelled, Done, Failed, Outcome, Recovered, Released, Retrying, Snoozed
from pqrun.job.record import Claim, Job
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from pqrun.store.link import KeptLink
from pqrun.store.settling import Settled, find_claim, settle
from tests.store.listening import hearing
from tests.store.locking import holding, wait_until_waiting
from tests.support.rows import make_job, make_worker

MakeRunning = Callable[..., Awaitable[Claim]]


@pytest.fixture
def make_running(connection: asyncpg.Connection) -> MakeRunning:
    """Make a RUNNING job of a registered worker and return its claim."""

    async def make(**columns: Any) -> Claim:
        worker = await make_worker(connection)
        job_id = await make_job(connection, status=Status.RUNNING, worker=worker, **columns)
        return Claim(job_id, await connection.fetchval("SELECT claim_id FROM pqrun.jobs WHERE id = $1", job_id))

    return make


async def found(store: PgJobStore, claim: Claim) -> Job:
    job = await store.get(claim.job_id)
    assert job is not None
    return job


async def raw(connection: asyncpg.Connection, claim: Claim) -> dict[str, object]:
    row = await connection.fetchrow(
        "SELECT *, tableoid::regclass::text AS part FROM pqrun.jobs WHERE id = $1", claim.job_id
    )
    assert row is not None
    return dict(row)


def is_unlocked(row: dict[str, object]) -> bool:
    return row["locked_at"] is row["locked_by"] is row["worker"] is None


async def test_done_keeps_result_duration_and_who_ran_it(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    claim = await make_running(dedupe_key="k", last_error="an earlier one", attempts=2)
    before = await raw(connection, claim)
    written = await settle(link, [Done(claim, 123, '{"ü": [1, null]}')])
    assert written == [Settled(claim, Status.DONE, None)]
    after = await raw(connection, claim)
    job = await found(store, claim)
    assert (job.status, job.result, job.duration_ms, job.attempts) == (Status.DONE, {"ü": [1, None]}, 123, 2)
    assert job.finished_at is not None
    kept = set(before) - {"status", "result", "duration_ms", "finished_at", "updated_at", "part"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert after["part"] == "pqrun.jobs_finished"


async def test_done_without_result_stores_null(link: KeptLink, store: PgJobStore, make_running: MakeRunning) -> None:
    claim = await make_running()
    await settle(link, [Done(claim, 0, None)])
    assert (await found(store, claim)).result is None


async def test_a_retry_is_due_after_its_delay_by_the_databases_clock(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    claim = await make_running(attempts=2)
    before = await connection.fetchval("SELECT clock_timestamp()")
    (written,) = await settle(link, [Retrying(claim, 5, "ValueError: x", 60.0)])
    after = await connection.fetchval("SELECT clock_timestamp()")
    assert (written.claim, written.status) == (claim, Status.SCHEDULED)
    assert written.due_in_seconds is not None
    assert 50 < written.due_in_seconds <= 60
    job = await found(store, claim)
    assert (job.status, job.attempts, job.last_error, job.claim_id) == (Status.SCHEDULED, 2, "ValueError: x", None)
    assert (before - job.run_after).total_seconds() <= -60
    assert (job.run_after - after).total_seconds() <= 60
    assert is_unlocked(await raw(connection, claim))


async def test_failed_is_the_end(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    claim = await make_running(attempts=5)
    assert await settle(link, [Failed(claim, 7, "ValueError: x")]) == [Settled(claim, Status.FAILED, None)]
    job = await found(store, claim)
    assert (job.status, job.attempts, job.last_error, job.duration_ms) == (Status.FAILED, 5, "ValueError: x", 7)
    assert job.finished_at is not None
    assert is_unlocked(await raw(connection, claim))
    assert job.claim_id == claim.claim_id  # so that its worker can ask whether it was written


@pytest.mark.parametrize(
    ("started", "counted", "attempts", "releases"), [(False, False, 1, 3), (True, False, 1, 4), (True, True, 2, 4)]
)
async def test_a_released_job_is_ready_at_once_in_its_old_place(
    link: KeptLink,
    connection: asyncpg.Connection,
    make_running: MakeRunning,
    started: bool,
    counted: bool,
    attempts: int,
    releases: int,
) -> None:
    claim = await make_running(attempts=2, releases=3, last_error="before")
    before = await raw(connection, claim)
    (written,) = await settle(link, [Released(claim, started=started, counted=counted)])
    assert written.status is Status.READY
    row = await raw(connection, claim)
    assert (row["status"], row["attempts"], row["releases"]) == ("READY", attempts, releases)
    assert (row["place"], row["run_after"], row["last_error"]) == (before["place"], before["run_after"], "before")
    assert is_unlocked(row)


async def test_a_recovered_job_counts_the_attempt_and_the_loss(
    link: KeptLink, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    claim = await make_running(attempts=2, lost=1)
    before = await raw(connection, claim)
    (written,) = await settle(link, [Recovered(claim, "lost its worker")])
    assert written.status is Status.READY
    row = await raw(connection, claim)
    assert (row["attempts"], row["lost"], row["last_error"], row["place"]) == (2, 2, "lost its worker", before["place"])
    assert is_unlocked(row)


async def test_a_snoozed_job_is_due_after_its_delay_and_costs_no_attempt(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    claim = await make_running(attempts=2, payload_version=3)
    before = await connection.fetchval("SELECT clock_timestamp()")
    (written,) = await settle(link, [Snoozed(claim, "needs newer code", 30.0)])
    assert (written.claim, written.status) == (claim, Status.SCHEDULED)
    assert written.due_in_seconds == pytest.approx(30.0, abs=1.0)
    job = await found(store, claim)
    assert (job.status, job.attempts, job.releases, job.lost) == (Status.SCHEDULED, 1, 0, 0)
    assert (job.last_error, job.payload_version, job.claim_id, job.locked_by) == ("needs newer code", 3, None, None)
    assert (job.run_after - before).total_seconds() == pytest.approx(30.0, abs=5.0)


async def test_a_snooze_that_its_handler_chose_is_counted_and_leaves_the_last_error(
    link: KeptLink, store: PgJobStore, make_running: MakeRunning
) -> None:
    claim, other = await make_running(attempts=3, max_attempts=3, snoozes=6, last_error="before"), await make_running()
    snoozed = Snoozed(claim, None, 30.0, is_chosen=True, reason="not yet")
    written = await settle(link, [snoozed, Released(other, started=True, counted=False)])
    assert {one.claim: one.status for one in written} == {claim: Status.SCHEDULED, other: Status.READY}
    job = await found(store, claim)
    assert (job.status, job.attempts, job.snoozes, job.releases, job.lost) == (Status.SCHEDULED, 2, 7, 0, 0)
    assert job.last_error == "before"
    assert (await found(store, other)).snoozes == 0


@pytest.mark.parametrize(
    "outcome",
    [
        lambda claim: Done(claim, 1, None),
        lambda claim: Failed(claim, 1, "x"),
        lambda claim: Retrying(claim, 1, "x", 1.0),
        lambda claim: Released(claim, started=True, counted=False),
        lambda claim: Snoozed(claim, "needs newer code", 1.0),
    ],
)
async def test_the_count_of_snoozes_stays_with_the_job(
    link: KeptLink, store: PgJobStore, make_running: MakeRunning, outcome: Callable[[Claim], Outcome]
) -> None:
    claim = await make_running(snoozes=6)
    await settle(link, [outcome(claim)])
    assert (await found(store, claim)).snoozes == 6


async def test_a_snooze_of_a_job_that_was_asked_to_cancel_is_written_as_cancelled(
    link: KeptLink, store: PgJobStore, make_running: MakeRunning
) -> None:
    claim = await make_running(snoozes=6)
    await store.cancel(claim.job_id)
    (written,) = await settle(link, [Snoozed(claim, None, 30.0, is_chosen=True)])
    assert written.status is Status.CANCELLED
    job = await found(store, claim)
    assert (job.status, job.snoozes, job.last_error) == (Status.CANCELLED, 6, None)


OUTCOMES: list[Callable[[Claim], Outcome]] = [
    lambda claim: Done(claim, 1, None),
    lambda claim: Failed(claim, 1, "x"),
    lambda claim: Cancelled(claim, 1),
    lambda claim: Retrying(claim, 1, "x", 1.0),
    lambda claim: Released(claim, started=True, counted=False),
    lambda claim: Recovered(claim, "x"),
    lambda claim: Snoozed(claim, "x", 1.0),
    lambda claim: Snoozed(claim, None, 1.0, is_chosen=True),
]


@pytest.mark.parametrize("make", OUTCOMES)
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_the_version_of_the_payload_stays_with_the_job_whatever_becomes_of_it(
    link: KeptLink,
    store: PgJobStore,
    connection: asyncpg.Connection,
    make_running: MakeRunning,
    make: Callable[[Claim], Outcome],
    is_cancelled: bool,
) -> None:
    claim = await make_running(payload_version=3)
    if is_cancelled:
        await store.cancel(claim.job_id)
    await settle(link, [make(claim)])
    job = await found(store, claim)
    assert (job.payload_version, job.status is Status.RUNNING) == (3, False)


async def test_cancelled_says_so(link: KeptLink, store: PgJobStore, make_running: MakeRunning) -> None:
    claim = await make_running()
    await settle(link, [Cancelled(claim, 3)])
    job = await found(store, claim)
    assert (job.status, job.last_error, job.duration_ms) == (Status.CANCELLED, "cancelled by request", 3)


def outcomes_of(claim: Claim) -> list[Outcome]:
    return [
        Done(claim, 1, '{"ok": true}'),
        Retrying(claim, 1, "x", 5.0),
        Failed(claim, 1, "x"),
        Released(claim, started=True, counted=False),
        Recovered(claim, "x"),
        Cancelled(claim, 1),
    ]


@pytest.mark.parametrize("kind", range(6))
async def test_a_cancel_request_wins_over_every_outcome(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection, make_running: MakeRunning, kind: int
) -> None:
    claim = await make_running()
    assert await store.cancel(claim.job_id) == "REQUESTED"
    requested = await raw(connection, claim)
    assert await settle(link, [outcomes_of(claim)[kind]]) == [Settled(claim, Status.CANCELLED, None)]
    row = await raw(connection, claim)
    assert (row["status"], row["result"], row["cancel_requested_at"]) == (
        "CANCELLED",
        None,
        requested["cancel_requested_at"],
    )
    assert row["finished_at"] is not None
    assert is_unlocked(row)


@pytest.mark.parametrize("kind", range(6))
async def test_a_lost_claim_writes_nothing(
    link: KeptLink, connection: asyncpg.Connection, make_running: MakeRunning, kind: int
) -> None:
    claim = await make_running()
    before = await raw(connection, claim)
    assert await settle(link, [outcomes_of(Claim(claim.job_id, claim.claim_id + 1))[kind]]) == []
    assert await settle(link, [outcomes_of(Claim(claim.job_id + 1, claim.claim_id))[kind]]) == []
    assert await raw(connection, claim) == before


@pytest.mark.parametrize("kind", range(6))
async def test_a_second_outcome_of_the_same_claim_writes_nothing(
    link: KeptLink, connection: asyncpg.Connection, make_running: MakeRunning, kind: int
) -> None:
    claim = await make_running()
    assert len(await settle(link, [outcomes_of(claim)[kind]])) == 1
    before = await raw(connection, claim)
    for other in outcomes_of(claim):
        assert await settle(link, [other]) == []
    assert await raw(connection, claim) == before


async def test_two_outcomes_of_one_claim_in_a_batch_write_one(
    link: KeptLink, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    claim = await make_running()
    await settle(link, [Done(claim, 1, None), Done(claim, 1, '{"a": 1}')])
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 1
    assert (await raw(connection, claim))["status"] == "DONE"


async def test_a_mixed_batch_is_written_in_one_statement(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    claims = [await make_running() for _ in range(8)]
    await store.cancel(claims[6].job_id)
    outcomes = [outcomes_of(claim)[index % 6] for index, claim in enumerate(claims)]
    outcomes[7] = Done(Claim(claims[7].job_id, 0), 1, None)
    written = await settle(link, reversed(outcomes))
    expected = [
        Status.DONE,
        Status.SCHEDULED,
        Status.FAILED,
        Status.READY,
        Status.READY,
        Status.CANCELLED,
        Status.CANCELLED,
    ]
    assert sorted((s.claim.job_id, s.status) for s in written) == [
        (claim.job_id, status) for claim, status in zip(claims, expected, strict=False)
    ]
    assert (await found(store, claims[7])).status is Status.RUNNING
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 8


async def test_nothing_to_settle_asks_nobody(link: KeptLink) -> None:
    assert await settle(link, []) == []


async def test_a_job_that_was_marked_running_by_hand_can_be_settled(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    job_id = await make_job(connection, status=Status.RUNNING, claim_id=None)
    outcome = Recovered(Claim(job_id, None), "x")  # type: ignore[arg-type]  # what the reaper finds in such a row
    assert len(await settle(link, [outcome])) == 1
    job = await store.get(job_id)
    assert job is not None
    assert job.status is Status.READY


async def test_an_outcome_that_cannot_be_stored_is_refused_whole(
    link: KeptLink, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    good, bad = await make_running(), await make_running()
    before = await raw(connection, good)
    with pytest.raises(StoreError, match="the database refused"):
        await settle(link, [Done(good, 1, None), Done(bad, 1, "[1]")])
    assert await raw(connection, good) == before
    assert len(await settle(link, [Done(good, 1, None)])) == 1


async def test_only_awaited_ends_are_announced(dsn: str, link: KeptLink, make_running: MakeRunning) -> None:
    first, second, third, fourth = [await make_running() for _ in range(4)]
    async with hearing(dsn, "pqrun:done") as ends, hearing(dsn) as heard:
        await settle(link, [Done(first, 1, None)])
        await settle(link, [Done(second, 1, None), Failed(third, 1, "x"), Retrying(fourth, 1, "x", 1)], awaited=[0])
        assert await ends.until_now() == []
        fifth, sixth = await make_running(), await make_running()
        outcomes: list[Outcome] = [Done(fifth, 1, None), Failed(sixth, 1, "x")]
        await settle(link, outcomes, awaited=[fifth.job_id, sixth.job_id, 999])
        (message,) = await ends.until_now()
        assert set(message.split(",")) == {str(fifth.job_id), str(sixth.job_id)}
        assert await heard.until_now() == []


async def test_a_retry_is_no_end_and_not_announced_as_one(dsn: str, link: KeptLink, make_running: MakeRunning) -> None:
    claim = await make_running()
    async with hearing(dsn, "pqrun:done") as ends:
        await settle(link, [Retrying(claim, 1, "x", 1.0)], awaited=[claim.job_id])
        assert await ends.until_now() == []


async def test_a_thousand_awaited_ends_do_not_outgrow_a_notification(
    dsn: str, link: KeptLink, connection: asyncpg.Connection
) -> None:
    await connection.execute("SELECT setval('pqrun.jobs_id_seq', $1)", 10**15)
    rows = await connection.fetch("""
        INSERT INTO pqrun.jobs (job_type, status, attempts, claim_id, locked_at, locked_by)
        SELECT 't', 'RUNNING', 1, n, now(), 'w' FROM generate_series(1, 1000) n RETURNING id, claim_id
    """)
    claims = [Claim(row["id"], row["claim_id"]) for row in rows]
    async with hearing(dsn, "pqrun:done") as ends:
        written = await settle(link, [Done(c, 1, None) for c in claims], awaited=[c.job_id for c in claims])
        assert len(written) == 1000
        messages = await ends.until_now()
        assert {int(text) for message in messages for text in message.split(",")} == {c.job_id for c in claims}
        assert len(messages) < 10


async def test_jobs_that_are_ready_again_wake_workers_once_per_lane(
    dsn: str, link: KeptLink, make_running: MakeRunning
) -> None:
    outcomes: list[Outcome] = [Released(await make_running(queue="a"), started=False, counted=False) for _ in range(3)]
    outcomes.append(Released(await make_running(queue="b", priority=-3), started=True, counted=False))
    outcomes.append(Recovered(await make_running(queue="b", priority=-3), "x"))
    async with hearing(dsn) as heard:
        await settle(link, outcomes)
        assert sorted(await heard.until_now()) == ["ready:-3:b", "ready:0:a", "suspect:-3:b"]


async def test_a_cancel_that_commits_while_the_settle_waits_wins(
    dsn: str, link: KeptLink, store: PgJobStore, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    claim, other = await make_running(), await make_running()
    request = "UPDATE pqrun.jobs SET cancel_requested_at = clock_timestamp() WHERE id = $1"
    async with holding(dsn, request, claim.job_id):
        task = asyncio.create_task(settle(link, [Done(claim, 1, '{"a": 1}'), Done(other, 1, None)]))
        await wait_until_waiting(connection)
    written = {s.claim: s.status for s in await task}
    assert written == {claim: Status.CANCELLED, other: Status.DONE}
    job = await found(store, claim)
    assert (job.status, job.result) == (Status.CANCELLED, None)
    assert job.cancel_requested_at is not None


async def test_a_cancel_that_comes_while_the_settle_is_open_finds_the_job_finished(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    claim = await make_running()
    async with holding(dsn, "SELECT 1") as settling:
        await settle(store.session(settling), [Done(claim, 1, '{"a": 1}')])
        cancel = asyncio.create_task(store.cancel(claim.job_id))
        rows = await store.run("cancel", claim.job_id)
        assert rows[0]["outcome"] == "LOCKED"
        assert not cancel.done()
    assert await cancel == "ALREADY_FINISHED"
    assert (await found(store, claim)).status is Status.DONE


async def test_a_claim_that_is_taken_over_while_the_settle_waits_writes_nothing(
    dsn: str, link: KeptLink, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    claim = await make_running()
    async with holding(dsn, "UPDATE pqrun.jobs SET claim_id = claim_id + 1000 WHERE id = $1", claim.job_id):
        task = asyncio.create_task(settle(link, [Done(claim, 1, None)]))
        await wait_until_waiting(connection)
    assert await task == []
    assert (await raw(connection, claim))["status"] == "RUNNING"


async def test_two_settlers_with_the_same_jobs_in_other_orders_do_not_deadlock(
    dsn: str, link: KeptLink, store: PgJobStore, make_running: MakeRunning
) -> None:
    claims = [await make_running() for _ in range(40)]
    other = store.open_link("settle", kept=True)
    one, two = await asyncio.gather(
        settle(link, [Done(c, 1, None) for c in claims]), settle(other, [Failed(c, 1, "x") for c in reversed(claims)])
    )
    assert len(one) + len(two) == 40
    await other.close()


async def test_a_claim_can_be_asked_for_after_its_end(link: KeptLink, make_running: MakeRunning) -> None:
    claim = await make_running()
    assert await find_claim(link, claim) is None
    await settle(link, [Done(claim, 1, None)])
    assert await find_claim(link, claim) is Status.DONE
    assert await find_claim(link, Claim(claim.job_id, claim.claim_id + 1)) is None
