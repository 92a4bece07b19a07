"""Waiting for ends: one statement for all ids, woken by the settle that ends them, and never left waiting."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from pqrun.errors import DatabaseUnavailableError, JobNotFound, NotOpenError, ResultTimeout, SchemaError
from pqrun.job.outcome import Done
from pqrun.job.record import Claim
from pqrun.job.state import Status
from pqrun.store import PgJobStore, waiter
from pqrun.store.endings import EndNews
from pqrun.store.link import KeptLink
from pqrun.store.settling import settle
from pqrun.store.source import DsnOpener
from pqrun.store.waiter import End, Waiter
from tests.store.listening import hearing
from tests.support.rows import make_job
from tests.support.waiting import DEADLINE_SECONDS, wait_until


async def make_claim(connection: asyncpg.Connection) -> Claim:
    job_id = await make_job(connection, status=Status.RUNNING)
    return Claim(job_id, await connection.fetchval("SELECT claim_id FROM pqrun.jobs WHERE id = $1", job_id))


@pytest.fixture
def rare_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls so rare that only a notification can be in time."""
    monkeypatch.setattr(waiter, "FIRST_POLL_SECONDS", 10 * DEADLINE_SECONDS)
    monkeypatch.setattr(waiter, "LAST_POLL_SECONDS", 10 * DEADLINE_SECONDS)


class Asked:
    """A store that takes down which ids it is asked for, and can be out of order."""

    def __init__(self, store: PgJobStore) -> None:
        self.ids: list[list[int]] = []
        self.failures: list[Exception] = []
        self._store = store

    async def run(self, name: str, *arguments: object, timeout: float | None = None) -> list[asyncpg.Record]:
        if name == "find_ends":
            asked = arguments[0]
            assert isinstance(asked, list)
            self.ids.append(asked)
            if self.failures:
                raise self.failures.pop(0)
        return await self._store.run(name, *arguments, timeout=timeout)


@pytest.fixture
def asked(store: PgJobStore) -> Asked:
    return Asked(store)


@pytest.fixture
async def waits(asked: Asked, dsn: str) -> AsyncIterator[Waiter]:
    waits = Waiter(asked, EndNews(asked, DsnOpener(dsn, "pqrun results"), "pqrun:done"))
    yield waits
    await waits.close()


async def test_a_finished_job_is_told_at_once(store: PgJobStore, connection: asyncpg.Connection) -> None:
    done = await make_job(connection, status=Status.DONE)
    failed = await make_job(connection, status=Status.FAILED)
    cancelled = await make_job(connection, status=Status.CANCELLED)
    assert await store.wait_end(done) == End(Status.DONE, '{"ok": true}', None)
    assert await store.wait_end(failed) == End(Status.FAILED, None, "ValueError: x")
    assert await store.wait_end(cancelled, timeout=0) == End(Status.CANCELLED, None, None)


async def test_an_unknown_job_is_not_found_with_and_without_a_limit(store: PgJobStore) -> None:
    for timeout in (None, 0, 5.0):
        with pytest.raises(JobNotFound, match="there is no job 999"):
            await store.wait_end(999, timeout=timeout)


async def test_a_limit_of_zero_looks_once(store: PgJobStore) -> None:
    job_id = await store.enqueue("t", {})
    with pytest.raises(ResultTimeout, match=f"job {job_id} has not finished yet; it goes on"):
        await store.wait_end(job_id, timeout=0)


async def test_a_limit_that_passes_leaves_the_job_alone(store: PgJobStore) -> None:
    job_id = await store.enqueue("t", {})
    with pytest.raises(ResultTimeout, match=r"did not finish within 0\.02 s") as caught:
        await store.wait_end(job_id, timeout=0.02)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.job_id == job_id
    job = await store.get(job_id)
    assert job is not None
    assert job.status is Status.READY


@pytest.mark.usefixtures("rare_polls")
async def test_the_settle_of_an_awaited_job_wakes_the_wait(
    dsn: str, store: PgJobStore, link: KeptLink, connection: asyncpg.Connection
) -> None:
    claim = await make_claim(connection)
    async with hearing(dsn) as heard:
        task = asyncio.create_task(store.wait_end(claim.job_id))
        assert await heard.wait_for(1) == [f"await:{claim.job_id}"]
        await settle(link, [Done(claim, 1, '{"a": 1}')], awaited=[claim.job_id])
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await task == End(Status.DONE, '{"a": 1}', None)


@pytest.mark.usefixtures("rare_polls")
async def test_a_cancel_wakes_the_wait(dsn: str, store: PgJobStore) -> None:
    job_id = await store.enqueue("t", {})
    async with hearing(dsn) as heard:
        task = asyncio.create_task(store.wait_end(job_id))
        await heard.wait_for(1)
        await store.cancel(job_id)
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert (await task).status is Status.CANCELLED


async def test_a_notification_that_is_lost_costs_a_poll_only(
    store: PgJobStore, link: KeptLink, connection: asyncpg.Connection
) -> None:
    claim = await make_claim(connection)
    task = asyncio.create_task(store.wait_end(claim.job_id))
    await settle(link, [Done(claim, 1, None)])
    assert (await task).status is Status.DONE


async def test_many_ids_are_asked_for_in_one_statement(
    dsn: str, asked: Asked, waits: Waiter, link: KeptLink, connection: asyncpg.Connection
) -> None:
    claims = [await make_claim(connection) for _ in range(50)]
    async with hearing(dsn) as heard:
        tasks = [asyncio.create_task(waits.wait(claim.job_id, None)) for claim in claims for _ in range(2)]
        (told,) = await heard.wait_for(1)
        assert told == "await:" + ",".join(str(claim.job_id) for claim in claims)
    await wait_until(lambda: len(asked.ids) >= 2)
    assert all(ids == [claim.job_id for claim in claims] for ids in asked.ids)
    await settle(link, [Done(claim, 1, None) for claim in claims])
    assert {end.status for end in await asyncio.gather(*tasks)} == {Status.DONE}


async def test_a_wait_that_is_given_up_is_asked_for_no_more(
    asked: Asked, waits: Waiter, connection: asyncpg.Connection
) -> None:
    one, two = await make_claim(connection), await make_claim(connection)
    given_up = asyncio.create_task(waits.wait(one.job_id, None))
    other = asyncio.create_task(waits.wait(two.job_id, None))
    await wait_until(lambda: asked.ids)
    given_up.cancel()
    await wait_until(lambda: asked.ids[-1] == [two.job_id])
    await connection.execute("DELETE FROM pqrun.jobs")
    with pytest.raises(JobNotFound):
        await other


async def test_many_awaited_ids_are_announced_in_messages_that_fit(
    dsn: str, waits: Waiter, connection: asyncpg.Connection
) -> None:
    await connection.execute("SELECT setval('pqrun.jobs_id_seq', $1)", 10**18)
    ids = [row["id"] for row in await connection.fetch(
        "INSERT INTO pqrun.jobs (job_type) SELECT 't' FROM generate_series(1, 1000) RETURNING id"
    )]  # fmt: skip
    async with hearing(dsn) as heard:
        tasks = [asyncio.create_task(waits.wait(job_id, None)) for job_id in ids]
        messages = await heard.wait_for(4)
        assert sorted(int(text) for m in messages for text in m.removeprefix("await:").split(",")) == ids
    await connection.execute("DELETE FROM pqrun.jobs")
    assert {type(e) for e in await asyncio.gather(*tasks, return_exceptions=True)} == {JobNotFound}


async def test_a_database_that_is_away_for_a_moment_is_asked_again(
    asked: Asked, waits: Waiter, connection: asyncpg.Connection
) -> None:
    asked.failures = [DatabaseUnavailableError("away")] * 3
    done = await make_job(connection, status=Status.DONE)
    assert (await waits.wait(done, None)).status is Status.DONE
    assert len(asked.ids) == 4


async def test_a_schema_that_is_missing_is_told_to_all_who_wait(empty_dsn: str) -> None:
    async with PgJobStore(empty_dsn) as store:
        outcomes = await asyncio.gather(store.wait_end(1), store.wait_end(2), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [SchemaError, SchemaError]


async def test_a_listener_that_dies_is_replaced(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiter, "ANNOUNCE_AGAIN_SECONDS", 0.0)
    job_id = await store.enqueue("t", {})
    listeners = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pqrun results'"

    async def listener() -> int | None:
        pid: int | None = await connection.fetchval(f"SELECT pid {listeners}")
        return pid

    task = asyncio.create_task(store.wait_end(job_id))
    await wait_until(listener)
    killed = await listener()
    await connection.execute("SELECT pg_terminate_backend($1)", killed)

    async def is_replaced() -> bool:
        return await listener() not in (None, killed)

    await wait_until(is_replaced)
    await store.cancel(job_id)
    assert (await task).status is Status.CANCELLED


async def test_closing_the_store_ends_a_wait_with_an_error_that_says_so(dsn: str) -> None:
    store = PgJobStore(dsn)
    await store.start()
    job_id = await store.enqueue("t", {})
    async with hearing(dsn) as heard:
        task = asyncio.create_task(store.wait_end(job_id))
        await heard.wait_for(1)
        await store.close()
    with pytest.raises(NotOpenError, match=f"closed while the result of job {job_id} was awaited"):
        await task


class SlowToClose(DsnOpener):
    """A connection that takes its time to close."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, "pqrun results")
        self.is_closing = asyncio.Event()
        self.may_close = asyncio.Event()

    async def dispose(self, connection: asyncpg.Connection, timeout: float) -> None:
        self.is_closing.set()
        await self.may_close.wait()
        await super().dispose(connection, timeout)


async def test_who_comes_while_the_listener_closes_is_served(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiter, "LINGER_SECONDS", 0.0)
    opener = SlowToClose(dsn)
    waits = Waiter(store, EndNews(store, opener, "pqrun:done"))
    done = await make_job(connection, status=Status.DONE)
    await waits.wait(done, None)
    await opener.is_closing.wait()
    task = asyncio.create_task(waits.wait(done, None))
    await wait_until(lambda: waits._waits)
    opener.may_close.set()
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert (await task).status is Status.DONE
    await waits.close()


async def test_results_awaited_one_after_another_share_a_connection(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    pids = set()
    for _ in range(5):
        await store.wait_end(await make_job(connection, status=Status.DONE))
        pids.add(
            await connection.fetchval(
                "SELECT min(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pqrun results'"
            )
        )
    assert len(pids - {None}) == 1


async def test_without_a_connection_of_its_own_polling_answers(dsn: str, connection: asyncpg.Connection) -> None:
    async with asyncpg.create_pool(dsn, min_size=0, max_size=4) as pool, PgJobStore(pool=pool) as store:
        claim = await make_claim(connection)
        task = asyncio.create_task(store.wait_end(claim.job_id))
        await settle(store, [Done(claim, 1, None)], awaited=[claim.job_id])
        assert (await task).status is Status.DONE
