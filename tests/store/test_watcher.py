"""Watching: one statement for all, the latest for who is slow, woken by the end, and nothing left behind."""

import asyncio
import gc
from collections.abc import AsyncIterator

import asyncpg
import pytest

from pqrun.errors import DatabaseUnavailableError, JobNotFound, NotOpenError, OptionError, ResultTimeout, SchemaError
from pqrun.job.outcome import Cancelled, Done, Failed
from pqrun.job.progress import Progress, Report
from pqrun.job.record import Claim
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from pqrun.store.endings import EndNews
from pqrun.store.link import KeptLink
from pqrun.store.reporting import report
from pqrun.store.settling import settle
from pqrun.store.source import DsnOpener
from pqrun.store.watcher import Watch, Watcher
from tests.store.listening import hearing
from tests.support.rows import make_job
from tests.support.waiting import DEADLINE_SECONDS, wait_until

RARELY = 10 * DEADLINE_SECONDS
"""Looks so rare that only news can be in time."""


async def make_claim(connection: asyncpg.Connection) -> Claim:
    job_id = await make_job(connection, status=Status.RUNNING)
    return Claim(job_id, await connection.fetchval("SELECT claim_id FROM pqrun.jobs WHERE id = $1", job_id))


class Asked:
    """A store that takes down which ids it is asked for, and can be out of order."""

    def __init__(self, store: PgJobStore) -> None:
        self.ids: list[list[int]] = []
        self.failures: list[Exception] = []
        self._store = store

    async def run(self, name: str, *arguments: object, timeout: float | None = None) -> list[asyncpg.Record]:
        if name == "find_progress":
            asked = arguments[0]
            assert isinstance(asked, list)
            self.ids.append(sorted(asked))
            if self.failures:
                raise self.failures.pop(0)
        return await self._store.run(name, *arguments, timeout=timeout)


@pytest.fixture
def asked(store: PgJobStore) -> Asked:
    return Asked(store)


@pytest.fixture
async def watcher(asked: Asked, dsn: str) -> AsyncIterator[Watcher]:
    watcher = Watcher(asked, EndNews(asked, DsnOpener(dsn, "pqrun results"), "pqrun:done"))
    yield watcher
    await watcher.close()


def watch(watcher: Watcher, job_id: int, *, timeout: float | None = None, every: float = 0.05) -> Watch:
    return Watch(watcher, job_id, timeout=timeout, every=every)


async def value_of(next_one: "asyncio.Task[Progress]") -> float:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return (await next_one).value


def following(watch: Watch) -> "asyncio.Task[Progress]":
    return asyncio.ensure_future(watch.__anext__())


async def test_the_present_report_each_change_and_the_end(
    watcher: Watcher, link: KeptLink, connection: asyncpg.Connection
) -> None:
    claim = await make_claim(connection)
    await report(link, {claim: Report(0.1, "first")})
    seen = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for progress in watch(watcher, claim.job_id):
            seen.append((progress.value, progress.message, progress.attempt))
            if len(seen) == 1:
                await report(link, {claim: Report(0.2, None)})
            elif len(seen) == 2:
                await report(link, {claim: Report(0.2, None)})  # the same again is a sign of life
            elif len(seen) == 3:
                await report(link, {claim: Report(1.0, "last")})
                await settle(link, [Done(claim, 1, None)])
    assert seen == [(0.1, "first", 1), (0.2, None, 1), (0.2, None, 1), (1.0, "last", 1)]


@pytest.mark.parametrize("status", [Status.DONE, Status.FAILED, Status.CANCELLED])
async def test_a_job_that_has_ended_is_watched_at_once_to_its_end(
    watcher: Watcher, connection: asyncpg.Connection, status: Status
) -> None:
    job_id = await make_job(connection, status=status)
    assert [progress async for progress in watch(watcher, job_id, every=RARELY)] == []
    await connection.execute("INSERT INTO pqrun.progress VALUES ($1, 1, 1, 0.5)", job_id)
    assert [progress.value async for progress in watch(watcher, job_id, every=RARELY)] == [0.5]


@pytest.mark.parametrize("end", [Done, Failed, Cancelled], ids=lambda end: end.__name__)
async def test_the_settle_of_a_watched_job_wakes_the_watch(
    dsn: str, watcher: Watcher, link: KeptLink, connection: asyncpg.Connection, end: type
) -> None:
    claim = await make_claim(connection)
    await report(link, {claim: Report(0.1, None)})
    watching = watch(watcher, claim.job_id, every=RARELY)
    async with hearing(dsn) as heard:
        assert await value_of(following(watching)) == 0.1
        assert await heard.wait_for(1) == [f"await:{claim.job_id}"]
        await report(link, {claim: Report(0.9, None)})
        last = following(watching)
        await wait_until(lambda: watcher._waits)
        outcome = end(claim, 1, None) if end is Done else end(claim, 1, "error")
        await settle(link, [outcome], awaited=[claim.job_id])
        assert await value_of(last) == 0.9  # though nobody would have looked so soon
    assert await anext(watching, None) is None


async def test_one_statement_asks_for_all(
    watcher: Watcher, asked: Asked, link: KeptLink, connection: asyncpg.Connection
) -> None:
    claims = [await make_claim(connection) for _ in range(20)]
    await report(link, {claim: Report(0.1, None) for claim in claims})
    watches = [watch(watcher, claim.job_id) for claim in claims for _ in range(3)]
    await asyncio.gather(*(anext(one) for one in watches))
    looks = len(asked.ids)
    assert looks <= 3
    assert asked.ids[0] == sorted(claim.job_id for claim in claims)
    tasks = [following(one) for one in watches]
    await wait_until(lambda: len(asked.ids) > looks)
    assert set(map(len, asked.ids[looks:])) == {20}
    await report(link, {claim: Report(0.2, None) for claim in claims})
    assert {await value_of(task) for task in tasks} == {0.2}


async def test_who_is_slow_gets_the_latest(
    watcher: Watcher, asked: Asked, link: KeptLink, connection: asyncpg.Connection
) -> None:
    claim = await make_claim(connection)
    await report(link, {claim: Report(0.0, None)})
    slow = watch(watcher, claim.job_id)
    await anext(slow)
    for n in range(1, 50):
        await report(link, {claim: Report(n / 100, None)})
    assert not watcher._waits  # nobody awaits anything: nothing is looked at, nothing is kept
    assert (await anext(slow)).value == 0.49
    assert len(asked.ids) == 2


async def test_each_watch_of_one_job_has_its_own_pace(
    watcher: Watcher, link: KeptLink, connection: asyncpg.Connection
) -> None:
    claim = await make_claim(connection)
    await report(link, {claim: Report(0.1, None)})
    patient = watch(watcher, claim.job_id, every=RARELY)
    await anext(patient)
    waiting = following(patient)
    await wait_until(lambda: watcher._waits)
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert (
            await anext(watch(watcher, claim.job_id))
        ).value == 0.1  # a late comer need not wait for the patient one
        await report(link, {claim: Report(0.2, None)})
        assert (await anext(watch(watcher, claim.job_id))).value == 0.2
    assert await value_of(waiting) == 0.2  # it was looked anyway


@pytest.mark.parametrize("how", ["break", "cancel"])
async def test_leaving_early_leaves_nothing_behind(
    dsn: str,
    watcher: Watcher,
    link: KeptLink,
    connection: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    monkeypatch.setattr("pqrun.store.watcher.LINGER_SECONDS", 0.0)
    claim = await make_claim(connection)
    await report(link, {claim: Report(0.1, None)})

    async def look_on() -> None:
        async for _ in watch(watcher, claim.job_id):
            if how == "break":
                break

    task = asyncio.create_task(look_on())
    if how == "cancel":
        await wait_until(lambda: watcher._waits)
        task.cancel()
    await asyncio.wait({task}, timeout=DEADLINE_SECONDS)
    assert not watcher._waits
    served = watcher._task
    assert served is not None
    await asyncio.wait_for(served, DEADLINE_SECONDS)
    listeners = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pqrun results'"
    await wait_until(lambda: _is_none(connection, listeners))
    del task, served
    gc.collect()
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()]


async def _is_none(connection: asyncpg.Connection, question: str) -> bool:
    return not await connection.fetchval(question)


async def test_a_job_that_is_not_there_or_goes_is_told(
    watcher: Watcher, link: KeptLink, connection: asyncpg.Connection
) -> None:
    with pytest.raises(JobNotFound, match="there is no job 999"):
        await anext(watch(watcher, 999))
    claim = await make_claim(connection)
    await report(link, {claim: Report(0.1, None)})
    watching = watch(watcher, claim.job_id)
    await anext(watching)
    await connection.execute("DELETE FROM pqrun.jobs")
    with pytest.raises(JobNotFound):
        await anext(watching)


async def test_a_limit_that_passes_ends_the_watch(watcher: Watcher, connection: asyncpg.Connection) -> None:
    claim = await make_claim(connection)
    watching = watch(watcher, claim.job_id, timeout=0.05)
    for kind in (ResultTimeout, TimeoutError):
        with pytest.raises(kind, match=rf"job {claim.job_id} did not end within 0\.05 s; it goes on"):
            await anext(watching)
    assert not watcher._waits


async def test_a_limit_of_zero_looks_once(store: PgJobStore, link: KeptLink, connection: asyncpg.Connection) -> None:
    claim = await make_claim(connection)
    await report(link, {claim: Report(0.1, None)})
    watching = aiter(store.watch(claim.job_id, timeout=0))
    assert (await anext(watching)).value == 0.1
    with pytest.raises(ResultTimeout):
        await anext(watching)
    await settle(link, [Done(claim, 1, None)])
    assert [progress.value async for progress in store.watch(claim.job_id, timeout=0)] == [0.1]


async def test_a_database_that_is_away_is_waited_for(
    watcher: Watcher, asked: Asked, link: KeptLink, connection: asyncpg.Connection
) -> None:
    claim = await make_claim(connection)
    await report(link, {claim: Report(0.1, None)})
    asked.failures = [DatabaseUnavailableError("gone")] * 3
    assert await value_of(following(watch(watcher, claim.job_id))) == 0.1
    assert len(asked.ids) == 4


async def test_a_schema_that_is_missing_is_told_to_all_who_watch(empty_dsn: str) -> None:
    async with PgJobStore(empty_dsn) as store:
        watches = [aiter(store.watch(job_id)) for job_id in (1, 2)]
        outcomes = await asyncio.gather(*(anext(one) for one in watches), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [SchemaError, SchemaError]


async def test_closing_the_store_ends_a_watch_with_an_error_that_says_so(
    dsn: str, connection: asyncpg.Connection
) -> None:
    claim = await make_claim(connection)
    async with hearing(dsn) as heard, PgJobStore(dsn) as store:
        task = asyncio.ensure_future(anext(aiter(store.watch(claim.job_id))))
        await heard.wait_for(1)
    with pytest.raises(NotOpenError, match=f"closed while job {claim.job_id} was watched"):
        await task


async def test_those_who_wait_and_those_who_watch_share_one_connection(
    store: PgJobStore, connection: asyncpg.Connection, dsn: str
) -> None:
    claim = await make_claim(connection)
    async with hearing(dsn) as heard:
        waiting = asyncio.create_task(store.wait_end(claim.job_id))
        watching = asyncio.ensure_future(anext(aiter(store.watch(claim.job_id)), None))
        await heard.wait_for(2)
        count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pqrun results'"
        assert await connection.fetchval(count) == 1
        await settle(store, [Done(claim, 1, None)], awaited=[claim.job_id])
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert (await waiting).status is Status.DONE
            assert await watching is None


async def test_a_worker_that_comes_later_is_told_again_who_is_watched(
    dsn: str, watcher: Watcher, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pqrun.store.watcher.ANNOUNCE_AGAIN_SECONDS", 0.01)
    claim = await make_claim(connection)
    async with hearing(dsn) as heard:
        task = following(watch(watcher, claim.job_id))
        assert await heard.wait_for(3) == [f"await:{claim.job_id}"] * 3
        task.cancel()


async def test_without_a_connection_of_its_own_looking_answers(dsn: str, connection: asyncpg.Connection) -> None:
    async with asyncpg.create_pool(dsn, min_size=0, max_size=4) as pool, PgJobStore(pool=pool) as store:
        claim = await make_claim(connection)
        task = asyncio.ensure_future(anext(aiter(store.watch(claim.job_id, every=0.05)), None))
        await settle(store, [Done(claim, 1, None)], awaited=[claim.job_id])
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await task is None


async def test_bad_calls_are_refused_at_once(store: PgJobStore) -> None:
    with pytest.raises(OptionError, match="every: "):
        store.watch(1, every=0)
    with pytest.raises(NotOpenError):
        PgJobStore("postgresql://localhost/never_opened").watch(1)
