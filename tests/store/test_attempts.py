"""Attempts: kept by the statement that writes the end, fenced with it, bounded, grouped, and removed with their job."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pqrun.errors import OptionError
from pqrun.job.attempts import COUNT_MAX, ErrorGroup, JobAttempt
from pqrun.job.failure import ATTEMPTS_KEPT, MESSAGE_MAX, Failure, FailureKind
from pqrun.job.outcome import Cancelled, Done, Failed, Outcome, Recovered, Released, Retrying, Snoozed
from pqrun.job.record import Claim
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from pqrun.store import attempts as attempts_module
from pqrun.store.attempts import prune_attempts
from pqrun.store.link import PLANNER_SETTINGS, KeptLink
from pqrun.store.maintaining import prune
from pqrun.store.settling import settle
from pqrun.store.work import WorkStore
from tests.store.locking import holding, wait_until_waiting
from tests.store.test_plans import Explainer
from tests.support.database import connected
from tests.support.rows import make_job

MakeRunning = Callable[..., Awaitable[Claim]]

FAILURE = Failure(FailureKind.ERROR, "shop.NoCard", "no such card", "shop.tasks:pay:12")


@pytest.fixture
def make_running(connection: asyncpg.Connection) -> MakeRunning:
    """Make a RUNNING job and return its claim."""

    async def make(**columns: Any) -> Claim:
        values = {"locked_by": "w-1", **columns}
        job_id = await make_job(connection, status=Status.RUNNING, **values)
        return Claim(job_id, await connection.fetchval("SELECT claim_id FROM pqrun.jobs WHERE id = $1", job_id))

    return make


async def again(connection: asyncpg.Connection, claim: Claim) -> Claim:
    """The job runs once more, whatever state it waits in."""
    query = """UPDATE pqrun.jobs SET status = 'RUNNING', attempts = attempts + 1, locked_at = clock_timestamp(), locked_by = 'w-1',
                      claim_id = nextval('pqrun.claims_id_seq') WHERE id = $1 RETURNING claim_id"""
    return Claim(claim.job_id, await connection.fetchval(query, claim.job_id))


def fingerprint(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


async def total(connection: asyncpg.Connection) -> int:
    return int(await connection.fetchval("SELECT count(*) FROM pqrun.attempts"))


# Written by the settle.


async def test_a_failed_start_is_kept_as_it_was(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    claim = await make_running(job_type="pay", queue="till", attempts=2)
    await connection.execute("UPDATE pqrun.jobs SET locked_at = locked_at - interval '1 h' WHERE id = $1", claim.job_id)
    before = await connection.fetchval("SELECT clock_timestamp()")
    await settle(link, [Retrying(claim, 1500, "Traceback …\nshop.NoCard: no such card", 5.0, FAILURE)])
    (kept,) = await store.attempts(claim.job_id)
    assert (kept.job_id, kept.job_type, kept.queue, kept.number) == (claim.job_id, "pay", "till", 2)
    assert (kept.kind, kept.status_after, kept.worker) == (FailureKind.ERROR, "SCHEDULED", "w-1")
    assert (kept.exception_type, kept.message, kept.frame) == ("shop.NoCard", "no such card", "shop.tasks:pay:12")
    assert kept.traceback == "Traceback …\nshop.NoCard: no such card"
    assert kept.duration_ms == 1500
    assert kept.ended_at - kept.started_at == timedelta(milliseconds=1500)
    assert before <= kept.ended_at
    assert kept.fingerprint == fingerprint("pay", "shop.NoCard", "shop.tasks:pay")
    assert repr(kept) == (
        f"JobAttempt(id={kept.id}, job_id={claim.job_id}, number=2, kind='error', exception_type='shop.NoCard')"
    )


KEPT: list[tuple[Callable[[Claim], Outcome], str, str, str | None]] = [
    (lambda claim: Retrying(claim, 1, "x", 1.0, FAILURE), "error", "SCHEDULED", "shop.NoCard"),
    (lambda claim: Failed(claim, 1, "x", FAILURE), "error", "FAILED", "shop.NoCard"),
    (lambda claim: Failed(claim, None, "x"), "error", "FAILED", None),
    (lambda claim: Failed(claim, None, "x", Failure(FailureKind.TIMEOUT, "T")), "timeout", "FAILED", "T"),
    (lambda claim: Retrying(claim, 1, "x", 1.0, Failure(FailureKind.TIMEOUT, "T")), "timeout", "SCHEDULED", "T"),
    (lambda claim: Recovered(claim, "x"), "lost", "READY", None),
    (lambda claim: Failed(claim, None, "x", Failure(FailureKind.LOST)), "lost", "FAILED", None),
    (lambda claim: Cancelled(claim, 1), "cancelled", "CANCELLED", None),
    (lambda claim: Released(claim, started=True, counted=False), "released", "READY", None),
    (lambda claim: Released(claim, started=True, counted=True), "released", "READY", None),
    (lambda claim: Failed(claim, None, "x", Failure(FailureKind.RELEASED)), "released", "FAILED", None),
]

NOT_KEPT: list[Callable[[Claim], Outcome]] = [
    lambda claim: Done(claim, 1, None),
    lambda claim: Snoozed(claim, None, 1.0, is_chosen=True),
    lambda claim: Snoozed(claim, "needs newer code", 1.0),
    lambda claim: Released(claim, started=False, counted=False),
]

STARTED = [make for make, *_ in KEPT] + NOT_KEPT[:2]
UNSTARTED = NOT_KEPT[2:]


@pytest.mark.parametrize(("make", "kind", "status", "exception_type"), KEPT)
async def test_each_kind_is_kept(
    link: KeptLink,
    store: PgJobStore,
    make_running: MakeRunning,
    make: Callable[[Claim], Outcome],
    kind: str,
    status: str,
    exception_type: str | None,
) -> None:
    claim, other = await make_running(attempts=3), await make_running()
    await settle(link, [make(claim), Snoozed(other, None, 1.0, is_chosen=True)])
    (kept,) = await store.attempts(claim.job_id)
    assert (kept.kind, kept.status_after, kept.number) == (kind, status, 3)
    assert kept.exception_type == exception_type
    job = await store.get(claim.job_id)
    assert job is not None
    assert job.status == status
    assert await store.attempts(other.job_id) == []


@pytest.mark.parametrize("make", NOT_KEPT)
async def test_what_did_not_fail_or_did_not_start_is_not_kept(
    link: KeptLink, connection: asyncpg.Connection, make_running: MakeRunning, make: Callable[[Claim], Outcome]
) -> None:
    assert len(await settle(link, [make(await make_running())])) == 1
    assert await total(connection) == 0


@pytest.mark.parametrize("make", STARTED)
async def test_what_was_cancelled_is_kept_as_cancelled_whatever_the_outcome_asked(
    link: KeptLink, store: PgJobStore, make_running: MakeRunning, make: Callable[[Claim], Outcome]
) -> None:
    claim = await make_running(job_type="pay")
    await store.cancel(claim.job_id)
    await settle(link, [make(claim)])
    (kept,) = await store.attempts(claim.job_id)
    assert (kept.kind, kept.status_after, kept.worker) == (FailureKind.CANCELLED, "CANCELLED", "w-1")
    assert kept.fingerprint == fingerprint("pay", "cancelled")


@pytest.mark.parametrize("make", UNSTARTED)
async def test_what_was_cancelled_before_it_started_is_not_kept(
    link: KeptLink,
    store: PgJobStore,
    connection: asyncpg.Connection,
    make_running: MakeRunning,
    make: Callable[[Claim], Outcome],
) -> None:
    claim = await make_running()
    await store.cancel(claim.job_id)
    (written,) = await settle(link, [make(claim)])
    assert written.status is Status.CANCELLED
    assert await total(connection) == 0


@pytest.mark.parametrize("make", STARTED)
async def test_a_lost_claim_keeps_nothing_and_a_repeated_settle_nothing_twice(
    link: KeptLink,
    store: PgJobStore,
    connection: asyncpg.Connection,
    make_running: MakeRunning,
    make: Callable[[Claim], Outcome],
) -> None:
    claim = await make_running()
    await store.cancel(claim.job_id)
    for lost in (Claim(claim.job_id, claim.claim_id + 1), Claim(claim.job_id + 1, claim.claim_id)):
        assert await settle(link, [make(lost)]) == []
    assert await total(connection) == 0
    for _ in range(3):  # the answer to the first is lost
        await settle(link, [make(claim)])
    assert await total(connection) == 1


async def test_a_batch_of_successes_writes_the_others_and_keeps_only_the_one_that_was_cancelled(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    claims = [await make_running() for _ in range(4)]
    await store.cancel(claims[1].job_id)
    batch = [Done(claim, 1, '{"n": 1}') for claim in claims]
    batch[2] = Done(Claim(claims[2].job_id, claims[2].claim_id + 1), 1, None)
    written = {one.claim: one.status for one in await settle(link, batch)}
    assert written == {claims[0]: Status.DONE, claims[1]: Status.CANCELLED, claims[3]: Status.DONE}
    (kept,) = await store.attempts(claims[1].job_id)
    assert (kept.kind, kept.traceback, kept.message) == (FailureKind.CANCELLED, None, None)
    assert await total(connection) == 1


async def test_a_cancel_that_commits_while_a_success_waits_is_kept(
    dsn: str, link: KeptLink, store: PgJobStore, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    claim = await make_running()
    request = "UPDATE pqrun.jobs SET cancel_requested_at = clock_timestamp() WHERE id = $1"
    async with holding(dsn, request, claim.job_id):
        task = asyncio.create_task(settle(link, [Done(claim, 1, '{"a": 1}')]))
        await wait_until_waiting(connection)
    assert [one.status for one in await task] == [Status.CANCELLED]
    assert [kept.kind for kept in await store.attempts(claim.job_id)] == [FailureKind.CANCELLED]


async def test_without_a_run_time_it_started_when_it_was_claimed_and_never_before(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    unknown, too_long = await make_running(), await make_running()
    query = "SELECT locked_at FROM pqrun.jobs WHERE id = $1"
    claimed = {claim: await connection.fetchval(query, claim.job_id) for claim in (unknown, too_long)}
    await settle(link, [Recovered(unknown, "x"), Failed(too_long, 10**9, "x")])
    for claim, locked_at in claimed.items():
        assert [kept.started_at for kept in await store.attempts(claim.job_id)] == [locked_at]


async def test_the_text_of_an_error_that_no_exception_brought_is_its_message_bounded(
    link: KeptLink, store: PgJobStore, make_running: MakeRunning
) -> None:
    claim = await make_running()
    await settle(link, [Recovered(claim, "lost its worker" + "!" * 2000)])
    (kept,) = await store.attempts(claim.job_id)
    assert kept.message is not None
    assert (kept.message[:15], len(kept.message)) == ("lost its worker", MESSAGE_MAX)


async def test_of_many_the_newest_are_kept_and_of_other_jobs_all(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    claim, other = await make_running(max_attempts=100), await make_running()
    await settle(link, [Retrying(other, 1, "x", 0.0)])
    for number in range(1, 26):
        await settle(link, [Retrying(claim, 1, f"error {number}", 0.0)])
        kept = await store.attempts(claim.job_id)
        expected = range(max(1, number - ATTEMPTS_KEPT + 1), number + 1)
        assert [(one.number, one.message) for one in kept] == [(n, f"error {n}") for n in expected]
        claim = await again(connection, claim)
    assert ATTEMPTS_KEPT == 20
    assert len(await store.attempts(other.job_id)) == 1


async def test_what_an_older_program_left_beyond_the_bound_goes_with_the_next(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    claim = await make_running()
    await connection.execute(INSERT, claim.job_id, 50)
    await settle(link, [Failed(claim, 1, "the last")])
    kept = await store.attempts(claim.job_id)
    assert (len(kept), kept[-1].message) == (ATTEMPTS_KEPT, "the last")


async def test_a_job_that_is_retried_by_hand_keeps_its_attempts(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    claim = await make_running(attempts=4)
    await settle(link, [Failed(claim, 1, "first")])
    await store.retry(claim.job_id)
    await settle(link, [Failed(await again(connection, claim), 1, "second")])
    kept = await store.attempts(claim.job_id)
    assert [(one.number, one.message) for one in kept] == [(4, "first"), (1, "second")]
    assert kept[0].id < kept[1].id


async def test_a_failure_in_the_transaction_of_a_handler_that_is_rolled_back_keeps_nothing(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection, make_running: MakeRunning
) -> None:
    claim = await make_running()
    await store.cancel(claim.job_id)
    async with connected(dsn) as own:
        transaction = own.transaction()
        await transaction.start()
        assert len(await settle(store.session(own), [Done(claim, 1, None)])) == 1
        await transaction.rollback()
    assert await total(connection) == 0


# Removed with their job.

INSERT = """
INSERT INTO pqrun.attempts (job_id, job_type, queue, number, kind, started_at, ended_at, status_after, exception_type, frame, fingerprint)
SELECT $1, 't', 'default', n, 'error', now(), now(), 'FAILED', 'X', 'm:f:1', 'f' FROM generate_series(1, $2::integer) n
"""


async def test_retention_and_a_delete_take_the_attempts_along_and_no_others(
    link: KeptLink, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    old = await make_job(connection, status=Status.FAILED, finished_at=datetime(2020, 1, 1, tzinfo=UTC))
    young, deleted = [await make_job(connection, status=Status.FAILED) for _ in range(2)]
    waiting, unwanted = await make_job(connection), await make_job(connection)
    for job_id in (old, young, deleted, waiting, unwanted):
        await connection.execute(INSERT, job_id, 3)
    assert (await prune(link, age_seconds=86400)).deleted == 1
    assert (await store.select([deleted, unwanted]).delete(waiting=True)).done == 2
    left = await connection.fetch("SELECT DISTINCT job_id FROM pqrun.attempts")
    assert {row["job_id"] for row in left} == {young, waiting}
    assert await total(connection) == 6


async def test_attempts_of_jobs_that_sql_deleted_are_removed_in_pieces_and_those_of_existing_jobs_never(
    link: KeptLink, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts_module, "PRUNE_ROWS", 10)
    jobs = [await make_job(connection, status=status) for status in Status for _ in range(3)]
    for job_id in jobs:
        await connection.execute(INSERT, job_id, 4)
    gone = jobs[::3]
    await connection.execute("DELETE FROM pqrun.jobs WHERE id = ANY ($1)", gone)
    deleted, after, pieces = 0, 0, 0
    while True:
        piece = await prune_attempts(link, after_job_id=after)
        deleted, pieces = deleted + piece.deleted, pieces + 1
        assert piece.is_mine
        if piece.last_job_id is None:
            break
        assert piece.last_job_id > after
        after = piece.last_job_id
    left = {row["job_id"] for row in await connection.fetch("SELECT job_id FROM pqrun.attempts")}
    assert (deleted, left) == (4 * len(gone), set(jobs) - set(gone))
    assert pieces > 5


async def test_one_worker_at_a_time_removes_them(dsn: str, link: KeptLink, connection: asyncpg.Connection) -> None:
    await connection.execute(INSERT, 1, 1)
    async with holding(dsn, "SELECT pg_advisory_xact_lock(hashtext('pqrun:prune'), 0)"):
        assert tuple(await prune_attempts(link, after_job_id=0)) == (False, 0, None)
    assert tuple(await prune_attempts(link, after_job_id=0)) == (True, 1, None)


async def test_a_job_that_moves_while_they_are_removed_keeps_its_attempts(
    dsn: str, link: KeptLink, store: PgJobStore, connection: asyncpg.Connection
) -> None:
    moving = await make_job(connection, status=Status.FAILED)
    await connection.execute(INSERT, moving, 2)
    async with connected(dsn) as other:
        transaction = other.transaction()
        await transaction.start()
        await store.session(other).run("retry", moving, False)
        assert (await prune_attempts(link, after_job_id=0)).deleted == 0
        await transaction.commit()
    assert (await prune_attempts(link, after_job_id=0)).deleted == 0


# Groups.


async def seed(connection: asyncpg.Connection, fingerprint: str, count: int, **columns: Any) -> None:
    values = {"job_id": 1, "job_type": "t", "kind": "error", "age": timedelta(0), **columns}
    query = """INSERT INTO pqrun.attempts (job_id, job_type, queue, number, kind, started_at, ended_at, status_after, exception_type,
                      frame, message, fingerprint)
               SELECT $3, $4, 'default', n, $5, now(), now() - $6::interval - n * interval '1 s', 'FAILED', 'X', 'm:f:' || n, 'm' || n, $1
                 FROM generate_series(1, $2::integer) n"""
    await connection.execute(query, fingerprint, count, *values.values())


async def test_errors_come_in_groups_the_newest_first(store: PgJobStore, connection: asyncpg.Connection) -> None:
    await seed(connection, "b", 3, job_id=7)
    await seed(connection, "a", 2, job_id=8, job_type="other")
    await seed(connection, "b", 1, job_id=9)
    first, second = await store.error_groups()
    assert (first.fingerprint, first.count, first.job_id, first.job_type) == ("b", 4, 9, "t")
    assert (first.kind, first.exception_type, first.frame, first.message) == (FailureKind.ERROR, "X", "m:f:1", "m1")
    assert first.last_seen - first.first_seen == await connection.fetchval(
        "SELECT max(ended_at) - (SELECT ended_at FROM pqrun.attempts WHERE id = 1) FROM pqrun.attempts WHERE id = 6"
    )
    assert (second.fingerprint, second.count, second.job_id) == ("a", 2, 8)
    assert "m1" not in repr(first)
    assert [one.fingerprint for one in await store.error_groups(limit=1)] == ["b"]
    assert [one.fingerprint for one in await store.error_groups(limit=1, before=first.attempt_id)] == ["a"]
    assert await store.error_groups(before=second.attempt_id) == []


async def test_groups_can_be_of_one_task_of_some_kinds_and_of_late(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    await seed(connection, "old", 1, age=timedelta(days=2))
    await seed(connection, "cancel", 1, kind="cancelled")
    await seed(connection, "lost", 1, kind="lost", job_type="other")
    named = {"error": {"old"}, "cancelled": {"cancel"}, "lost": {"lost"}}
    for kind, expected in named.items():
        assert {one.fingerprint for one in await store.error_groups(kinds=[FailureKind(kind)])} == expected
    assert {one.fingerprint for one in await store.error_groups()} == {"old", "lost"}
    assert {one.fingerprint for one in await store.error_groups(job_type="other")} == {"lost"}
    for since in (timedelta(hours=1), datetime.now(UTC) - timedelta(hours=1)):
        assert {one.fingerprint for one in await store.error_groups(since=since)} == {"lost"}
    (cancelled,) = await store.error_groups(kinds=[FailureKind.CANCELLED])
    assert (cancelled.exception_type, cancelled.frame) == (None, None)


async def test_a_group_is_counted_no_further_than_told(store: PgJobStore, connection: asyncpg.Connection) -> None:
    await seed(connection, "a", COUNT_MAX + 5)
    assert [one.count for one in await store.error_groups()] == [COUNT_MAX]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": []}, "kinds: expected one or more of error, timeout"),
        ({"kinds": "error"}, "kinds: expected one or more of error, timeout"),
        ({"kinds": ["none"]}, "kinds: expected some of error, timeout"),
        ({"limit": 0}, "limit: expected 1 to 1000; got 0"),
        ({"limit": True}, "limit: expected 1 to 1000; got True"),
        ({"since": datetime(2026, 1, 1)}, "since: expected a datetime with a time zone"),  # noqa: DTZ001  # that is what is refused
        ({"job_type": ""}, "job_type"),
    ],
)
async def test_what_cannot_be_asked_for_is_refused(store: PgJobStore, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        await store.error_groups(**options)


async def test_values_know_no_more_than_their_columns() -> None:
    assert set(ErrorGroup.__struct_fields__) & set(JobAttempt.__struct_fields__) == {
        *("fingerprint", "job_type", "kind", "exception_type", "frame", "message", "job_id"),
    }


@pytest.fixture
async def full(connection: asyncpg.Connection) -> asyncpg.Connection:
    """Many attempts in few groups, of many jobs, none of which is there."""
    await connection.execute("""
        INSERT INTO pqrun.attempts (job_id, job_type, queue, number, kind, started_at, ended_at, status_after, fingerprint, traceback)
        SELECT n / 10, 't', 'default', 1, 'error', now(), now(), 'FAILED', md5((n % 100)::text), repeat('x', 200)
          FROM generate_series(1, 100000) n;
        ANALYZE pqrun.attempts""")
    return connection


@pytest.mark.parametrize("settings", [PLANNER_SETTINGS, "SET plan_cache_mode = auto"], ids=["kept", "pool"])
@pytest.mark.parametrize("generic", [False, True], ids=["for its arguments", "generic"])
async def test_what_groups_and_attempts_cost_does_not_grow_with_the_attempts(
    full: asyncpg.Connection, settings: str, generic: bool
) -> None:
    await full.execute(settings)
    explainer = Explainer(full)
    groups = await explainer.plan(
        "find_error_groups", ["error"], None, None, None, 50, 100, 5000, None, generic=generic
    )
    assert set(groups.indexes) == {"attempts_fingerprint"}, groups.text
    assert "attempts" not in groups.scanned, groups.text
    assert groups.buffers < 100 * 20 + 50 * 120, groups.buffers  # a table of some 4,000 pages, whose rows are scattered
    one = await explainer.plan("find_attempts", 5000, generic=generic)
    assert set(one.indexes) == {"attempts_pkey"}, one.text
    assert one.buffers < 30, one.text
    if settings != PLANNER_SETTINGS:
        return  # what follows always runs with those
    piece = await explainer.plan("prune_attempts", 500, 100, generic=generic)
    assert "attempts" not in piece.scanned, piece.text
    assert piece.buffers < 100 * 20, piece.buffers


async def test_the_pruner_of_a_worker_asks_for_both(store: PgJobStore, connection: asyncpg.Connection) -> None:
    work = WorkStore(store, worker_id="w")
    await connection.execute(INSERT, 1, 2)
    assert (await work.prune_attempts(after_job_id=0)).deleted == 2
    await work.close(1.0)
