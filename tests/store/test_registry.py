"""The registry: a beat that is counted, a grave that is fenced by it, a lock that dies with its connection."""

import asyncpg
import pytest

from pqrun.errors import DatabaseUnavailableError
from pqrun.store import PgJobStore
from pqrun.store.keeping import KeptRegistry
from pqrun.store.link import Session
from pqrun.store.registry import Beat, beat, bury, deregister, hold_lock, probe_locks, register
from pqrun.store.source import DsnOpener
from pqrun.store.statements import Statements
from tests.support.database import connected
from tests.support.rows import make_worker
from tests.support.waiting import wait_until

STATEMENTS = Statements("pqrun")


async def test_each_process_gets_a_row_of_its_own_even_under_one_name(
    session: Session, connection: asyncpg.Connection
) -> None:
    one, two = await register(session, "w", "host", 10), await register(session, "w", "host", 11)
    assert one != two
    rows = await connection.fetch(
        "SELECT worker_id, hostname, pid, beat, has_lock, dead_at FROM pqrun.workers ORDER BY id"
    )
    assert [tuple(row) for row in rows] == [("w", "host", 10, 0, False, None), ("w", "host", 11, 0, False, None)]


async def test_a_beat_counts_and_reads_all_living_others(session: Session, connection: asyncpg.Connection) -> None:
    own, other = await register(session, "own", "h", 1), await register(session, "other", "h", 2)
    await make_worker(connection, "dead", dead=True)
    assert (await beat(session, own))[:2] == (True, [Beat(other, 0, "other", False)])
    await beat(session, own)
    assert (await beat(session, other))[:2] == (True, [Beat(own, 2, "own", False)])


async def test_a_worker_that_was_taken_for_dead_is_told_with_its_beat(
    session: Session, connection: asyncpg.Connection
) -> None:
    own = await register(session, "own", "h", 1)
    await connection.execute("UPDATE pqrun.workers SET dead_at = now()")
    other = await register(session, "other", "h", 2)
    assert (await beat(session, own))[:2] == (False, [Beat(other, 0, "other", False)])
    assert (await beat(session, 999))[:2] == (False, [Beat(other, 0, "other", False)])
    assert await connection.fetchval("SELECT beat FROM pqrun.workers WHERE id = $1", own) == 0


async def test_a_burial_is_fenced_by_the_beat_that_was_observed(session: Session) -> None:
    observer, still, moved = [await register(session, name, "h", 1) for name in ("observer", "still", "moved")]
    observed = (await beat(session, observer)).others
    await beat(session, moved)
    assert await bury(session, observed) == [(still, "still")]
    assert await bury(session, observed) == []  # only once
    assert [other.worker for other in (await beat(session, observer)).others] == [moved]
    assert await bury(session, []) == []


async def test_a_worker_that_leaves_is_dead_at_once(session: Session, connection: asyncpg.Connection) -> None:
    own = await register(session, "own", "h", 1)
    await deregister(session, own)
    assert await connection.fetchval("SELECT dead_at IS NOT NULL FROM pqrun.workers WHERE id = $1", own)
    assert not (await beat(session, own)).is_registered
    await deregister(session, own)


async def test_a_held_lock_is_seen_from_other_connections(dsn: str, session: Session) -> None:
    worker, other = await register(session, "w", "h", 1), await register(session, "o", "h", 1)
    assert await hold_lock(session, worker)
    async with connected(dsn) as second:
        observer = Session(second, STATEMENTS)
        assert await probe_locks(observer, [worker, other]) == frozenset({other})
        assert await probe_locks(observer, [other]) == frozenset({other})  # a probe keeps nothing
        assert not await hold_lock(observer, worker)  # and says so in the row
        assert (await beat(observer, other)).others == [Beat(worker, 0, "w", False)]


async def test_a_lock_is_free_when_its_connection_closes(dsn: str, session: Session) -> None:
    worker = await register(session, "w", "h", 1)
    async with connected(dsn) as keeper:
        assert await hold_lock(Session(keeper, STATEMENTS), worker)
        assert await probe_locks(session, [worker]) == frozenset()

    async def is_free() -> bool:
        return await probe_locks(session, [worker]) == frozenset({worker})

    await wait_until(is_free)


async def test_a_lock_is_free_when_its_backend_is_killed(
    dsn: str, session: Session, connection: asyncpg.Connection
) -> None:
    worker = await register(session, "w", "h", 1)
    keeper = KeptRegistry(DsnOpener(dsn, "pqrun keeper"), STATEMENTS)
    await keeper.connect()
    assert await keeper.hold_lock(worker)
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pqrun keeper'"
    )

    async def is_free() -> bool:
        return await probe_locks(session, [worker]) == frozenset({worker})

    await wait_until(is_free)
    with pytest.raises(DatabaseUnavailableError):
        await keeper.beat(worker)
    assert not keeper.is_connected
    await keeper.connect()
    assert (await keeper.beat(worker)).is_registered
    await keeper.close()


async def test_the_keeper_hears_the_channel(dsn: str, store: PgJobStore) -> None:
    heard: list[str] = []
    keeper = KeptRegistry(DsnOpener(dsn, "pqrun keeper"), STATEMENTS)
    await keeper.connect()
    await keeper.listen(heard.append)
    await store.enqueue("t", {}, queue="a:b", priority=-3)
    await wait_until(lambda: heard)
    assert heard == ["ready:-3:a:b"]
    await keeper.close()
    assert not keeper.is_connected
