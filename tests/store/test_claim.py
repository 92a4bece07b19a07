"""claim.sql: which READY jobs become RUNNING, in what order, and what the claim learns on the way."""

import asyncio
from collections.abc import Sequence

import asyncpg

from pqrun.job.record import Claim, Job
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from pqrun.store.claiming import ClaimBatch, Claimer, Lane, LaneLook
from pqrun.store.link import KeptLink
from pqrun.store.source import DsnOpener
from pqrun.store.statements import Statements
from tests.store.locking import holding
from tests.support.database import connected
from tests.support.jobs import facts
from tests.support.rows import make_job, make_worker

DEFAULT = Lane("default", 0)


async def claim(
    claimer: Claimer,
    *,
    lanes: Sequence[tuple[Lane, int]] = ((DEFAULT, 0),),
    types: Sequence[str] = ("t",),
    proven: Sequence[str] = ("t",),
    alive: Sequence[int] = (),
    limit: int = 100,
    look: int = 100,
    free: int = 100,
) -> ClaimBatch:
    return await claimer.claim(lanes, list(types), list(proven), list(alive), limit=limit, look=look, free=free)


def ids(batch: ClaimBatch) -> list[int]:
    return [job.id for job in batch.jobs]


async def place_of(connection: asyncpg.Connection, job_id: int) -> int:
    return int(await connection.fetchval("SELECT place FROM pqrun.jobs WHERE id = $1", job_id))


async def make_jobs(connection: asyncpg.Connection, count: int, **columns: object) -> list[int]:
    return [await make_job(connection, **columns) for _ in range(count)]  # type: ignore[arg-type]  # status is not given here


async def test_a_claimed_job_is_running_and_says_whose(
    connection: asyncpg.Connection, claimer: Claimer, worker: int, store: PgJobStore
) -> None:
    job_id = await make_job(
        connection,
        payload='{"a": [1, "ü"]}',
        priority=0,
        max_attempts=7,
        timeout_seconds=1.5,
        dedupe_key="k",
        last_error="before",
        attempts=2,
        backoff_seconds=[1.0, 2.5],
        payload_version=3,
    )
    before = await connection.fetchval("SELECT clock_timestamp()")
    (job,) = (await claim(claimer)).jobs
    after = await connection.fetchval("SELECT clock_timestamp()")
    assert (job.id, job.status, job.attempts, job.max_attempts) == (job_id, Status.RUNNING, 3, 7)
    assert (job.payload, job.timeout_seconds, job.dedupe_key) == ({"a": [1, "ü"]}, 1.5, "k")
    assert (job.last_error, job.backoff_seconds, job.locked_by, job.queue) == ("before", (1.0, 2.5), "w", "default")
    assert job.payload_version == 3
    assert job.locked_at is not None
    assert before <= job.locked_at <= after
    stored = await store.get(job_id)
    assert facts(stored) == facts(job)
    assert await connection.fetchval("SELECT worker FROM pqrun.jobs WHERE id = $1", job_id) == worker


async def test_jobs_come_lane_by_lane_and_in_order_of_place(connection: asyncpg.Connection, claimer: Claimer) -> None:
    low = await make_jobs(connection, 2, priority=-5)
    high = await make_jobs(connection, 2, priority=10)
    other = await make_jobs(connection, 2, queue="other")
    late = await make_job(connection, place=10**9)
    early = await make_job(connection, place=-5)
    lanes = [(Lane("default", 10), -10), (DEFAULT, -10), (Lane("other", 0), 0), (Lane("default", -5), 0)]
    assert ids(await claim(claimer, lanes=lanes)) == [*high, early, late, *other, *low]


async def test_only_places_behind_the_cursor_are_claimed(connection: asyncpg.Connection, claimer: Claimer) -> None:
    jobs = await make_jobs(connection, 4)
    cursor = await place_of(connection, jobs[1])
    assert ids(await claim(claimer, lanes=[(DEFAULT, cursor)])) == jobs[2:]
    assert ids(await claim(claimer, lanes=[(DEFAULT, cursor - 1)])) == [jobs[1]]
    assert ids(await claim(claimer)) == [jobs[0]]


async def test_a_full_claim_says_nothing_and_a_short_one_how_far_it_looked(
    connection: asyncpg.Connection, claimer: Claimer
) -> None:
    jobs = await make_jobs(connection, 3)
    unserved = await make_job(connection, job_type="gone")
    batch = await claim(claimer, limit=2)
    assert (ids(batch), batch.looks, batch.is_barred) == (
        jobs[:2],
        [LaneLook(DEFAULT, await place_of(connection, jobs[1]))],
        False,
    )
    batch = await claim(claimer, limit=2)
    assert ids(batch) == jobs[2:]
    assert batch.looks == [LaneLook(DEFAULT, await place_of(connection, unserved))]  # rows not served were looked at
    assert (await claim(claimer, lanes=[(DEFAULT, batch.looks[0].place)])).looks == []


async def test_a_claim_looks_at_a_bounded_number_of_rows(connection: asyncpg.Connection, claimer: Claimer) -> None:
    gone = await make_jobs(connection, 5, job_type="gone")
    known = await make_job(connection)
    batch = await claim(claimer, look=3)
    assert (ids(batch), batch.looks) == ([], [LaneLook(DEFAULT, await place_of(connection, gone[2]))])
    batch = await claim(claimer, look=3, lanes=[(DEFAULT, batch.looks[0].place)])
    assert ids(batch) == [known]


async def test_a_short_claim_says_which_looks_ended_before_their_lanes_did(
    connection: asyncpg.Connection, claimer: Claimer
) -> None:
    high, lane = Lane("default", 5), Lane("default", 0)
    for _ in range(3):
        await make_job(connection, job_type="other")
    await make_job(connection, job_type="other", priority=5)
    batch = await claimer.claim([(high, 0), (lane, 0)], ["t"], [], [], limit=10, look=3, free=10)
    assert [look.lane for look in batch.looks] == [high, lane]
    assert [look.lane for look in batch.cut] == [lane]
    (more,) = batch.cut
    batch = await claimer.claim([more], ["t"], [], [], limit=10, look=3, free=10)
    assert (batch.jobs, batch.looks, batch.cut) == ([], [], [])


async def test_a_row_that_somebody_holds_bars_nobody_from_a_free_slot(
    dsn: str, connection: asyncpg.Connection, claimer: Claimer
) -> None:
    locked, free = await make_job(connection), await make_job(connection)
    async with connection.transaction():
        await connection.execute("SELECT FROM pqrun.jobs_active WHERE id = $1 FOR UPDATE", locked)
        batch = await claimer.claim([(Lane("default", 0), 0)], ["t"], [], [], limit=1, look=10, free=1)
    assert ([job.id for job in batch.jobs], batch.is_barred) == ([free], False)


async def test_ten_thousand_jobs_of_an_unserved_type_do_not_hide_ten_that_are_served(
    connection: asyncpg.Connection, claimer: Claimer
) -> None:
    await connection.execute(
        "INSERT INTO pqrun.jobs (job_type, priority) SELECT 'gone', 10 FROM generate_series(1, 10000)"
    )
    known = await make_jobs(connection, 10, job_type="known")
    lanes = {Lane("default", 10): 0, DEFAULT: 0}
    claimed: list[int] = []
    claims = 0
    while len(claimed) < 10:
        batch = await claim(claimer, lanes=list(lanes.items()), types=["known"], look=1000)
        claimed += ids(batch)
        lanes |= {look.lane: look.place for look in batch.looks}
        claims += 1
    assert (claimed, claims) == (known, 1)
    assert lanes[Lane("default", 10)] > 0


async def test_each_claim_takes_a_fresh_number(connection: asyncpg.Connection, claimer: Claimer) -> None:
    await make_jobs(connection, 3)
    first = [job.claim_id or 0 for job in (await claim(claimer)).jobs]
    await connection.execute(
        "UPDATE pqrun.jobs SET status = 'READY', claim_id = NULL, worker = NULL, locked_at = NULL, locked_by = NULL"
    )
    again = [job.claim_id or 0 for job in (await claim(claimer)).jobs]
    assert len({*first, *again}) == 6
    assert min(again) > max(first)


async def test_two_claimers_never_share_a_job(dsn: str, connection: asyncpg.Connection) -> None:
    await connection.execute("INSERT INTO pqrun.jobs (job_type) SELECT 't' FROM generate_series(1, 400)")
    links = [KeptLink(DsnOpener(dsn, "pqrun test"), Statements("pqrun")) for _ in range(4)]
    claimers = [
        Claimer(link, worker=await make_worker(connection, f"w{n}"), worker_id=f"w{n}") for n, link in enumerate(links)
    ]

    async def drain(claimer: Claimer) -> list[Job]:
        jobs: list[Job] = []
        while (batch := await claim(claimer, limit=7)).jobs:
            jobs += batch.jobs
        return jobs

    found = [job for jobs in await asyncio.gather(*map(drain, claimers)) for job in jobs]
    assert len(found) == len({job.id for job in found}) == len({job.claim_id for job in found}) == 400
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE status = 'RUNNING' AND attempts = 1") == 400
    await asyncio.gather(*(link.close() for link in links))


async def test_a_locked_row_is_passed_over(dsn: str, connection: asyncpg.Connection, claimer: Claimer) -> None:
    jobs = await make_jobs(connection, 3)
    async with holding(dsn, "SELECT FROM pqrun.jobs WHERE id = $1 FOR UPDATE", jobs[1]):
        batch = await claim(claimer)
        assert ids(batch) == [jobs[0], jobs[2]]
        assert batch.looks == [LaneLook(DEFAULT, await place_of(connection, jobs[2]))]
    assert ids(await claim(claimer)) == [jobs[1]]


async def test_unproven_jobs_go_into_free_slots_only(connection: asyncpg.Connection, claimer: Claimer) -> None:
    jobs = await make_jobs(connection, 5)
    batch = await claim(claimer, proven=[], free=2)
    assert (ids(batch), batch.is_barred) == (jobs[:2], True)
    assert batch.looks == [LaneLook(DEFAULT, await place_of(connection, jobs[1]))]  # the barred job must be found again
    batch = await claim(claimer, proven=["t"], free=0)
    assert (ids(batch), batch.is_barred) == (jobs[2:], False)


async def test_a_job_with_one_attempt_is_never_claimed_ahead(connection: asyncpg.Connection, claimer: Claimer) -> None:
    first = await make_job(connection)
    once = await make_job(connection, max_attempts=1)
    behind = await make_job(connection)
    batch = await claim(claimer, free=1)
    assert (ids(batch), batch.is_barred) == ([first], True)  # what is behind it waits, too: the order holds
    batch = await claim(claimer, free=0)
    assert (ids(batch), batch.is_barred) == ([], True)
    batch = await claim(claimer, free=1)
    assert (ids(batch), batch.is_barred) == ([once, behind], False)


async def test_a_barred_job_ends_the_claim_in_all_lanes_behind_it(
    connection: asyncpg.Connection, claimer: Claimer
) -> None:
    high = await make_job(connection, priority=5, job_type="new")
    await make_job(connection)
    lanes = [(Lane("default", 5), 0), (DEFAULT, 0)]
    batch = await claim(claimer, lanes=lanes, types=["t", "new"], free=0)
    assert (ids(batch), batch.is_barred) == ([], True)
    batch = await claim(claimer, lanes=lanes, types=["t", "new"], free=1)
    assert ids(batch)[0] == high
    assert len(batch.jobs) == 2


async def test_an_id_that_is_still_alive_in_the_worker_is_not_claimed(
    connection: asyncpg.Connection, claimer: Claimer
) -> None:
    jobs = await make_jobs(connection, 3)
    batch = await claim(claimer, alive=[jobs[0], jobs[2]])
    assert ids(batch) == [jobs[1]]
    assert batch.looks == [LaneLook(DEFAULT, await place_of(connection, jobs[2]))]
    assert ids(await claim(claimer)) == [jobs[0], jobs[2]]


async def test_a_worker_that_was_taken_for_dead_claims_nothing(
    connection: asyncpg.Connection, claimer: Claimer, worker: int
) -> None:
    jobs = await make_jobs(connection, 2)
    await connection.execute("UPDATE pqrun.workers SET dead_at = now() WHERE id = $1", worker)
    assert ids(await claim(claimer)) == []
    await connection.execute("DELETE FROM pqrun.workers")
    assert ids(await claim(claimer)) == []
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE status = 'READY'") == len(jobs)


async def test_what_is_not_ready_is_not_claimed(connection: asyncpg.Connection, claimer: Claimer) -> None:
    for status in Status:
        if status is not Status.READY:
            await make_job(connection, status=status)
    await make_job(connection, lost=1)  # claim_suspect.sql has it
    await make_job(connection, queue="other")
    await make_job(connection, priority=1)
    assert ids(await claim(claimer)) == []


async def test_a_job_that_failed_while_the_claim_looked_keeps_its_delay(
    dsn: str, connection: asyncpg.Connection, link: KeptLink, worker: int
) -> None:
    """The row was READY in the claim's snapshot; when the claim comes to lock it, it has run and waits for its next attempt."""
    failed, lost, ready = [await make_job(connection) for _ in range(3)]
    async with connected(dsn) as looking, looking.transaction():
        await looking.execute(f"DECLARE look CURSOR FOR {claim_by_hand(worker)}")  # takes its snapshot now
        await connection.execute(
            "UPDATE pqrun.jobs SET status = 'SCHEDULED', attempts = 1, run_after = now() + interval '1 h' WHERE id = $1",
            failed,
        )
        await connection.execute("UPDATE pqrun.jobs SET lost = 1, attempts = 1 WHERE id = $1", lost)
        rows = await looking.fetch("FETCH ALL FROM look")
    assert [row["spot"] for row in rows] == [
        await connection.fetchval("SELECT ctid::text FROM pqrun.jobs WHERE id = $1", ready)
    ]


def claim_by_hand(worker: int) -> str:
    """What picks the jobs in claim.sql; a cursor is the way to a statement whose snapshot is older than what it locks."""
    sql = Statements("pqrun")["claim"]
    text = sql[: sql.index("), claimed AS (")] + ") SELECT l.spot::text AS spot FROM picked l"
    for mark, value in (
        ("$10", "'{t}'"),
        ("$11", "'{}'"),
        ("$1", "'{default}'"),
        ("$2", "'{0}'"),
        ("$3", "'{0}'"),
        ("$4", "'{t}'"),
        ("$5", "10"),
        ("$6", "10"),
        ("$7", str(worker)),
        ("$9", "10"),
    ):
        text = text.replace(f"{mark}::", f"{value}::")
    return text


async def test_the_claim_returns_what_the_fence_needs(connection: asyncpg.Connection, claimer: Claimer) -> None:
    await make_jobs(connection, 3)
    claims = [Claim(job.id, job.claim_id or 0) for job in (await claim(claimer)).jobs]
    rows = await connection.fetch("SELECT id, claim_id FROM pqrun.jobs ORDER BY id")
    assert claims == [Claim(row["id"], row["claim_id"]) for row in rows]
