"""Pauses as claims see them, and what queues look like."""

import asyncio
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from pqrun.errors import ArgumentsError, DatabaseUnavailableError, NotOpenError, OptionError
from pqrun.job.pause import Pause, Pauses
from pqrun.job.serving import Serving
from pqrun.job.state import Status
from pqrun.store import PgJobStore, queues
from pqrun.store.claiming import Claimer, Lane
from pqrun.store.link import KeptLink, Session
from pqrun.store.maintaining import find_unserved
from pqrun.store.registry import beat, register
from tests.support.database import connected
from tests.support.rows import make_job
from tests.support.waiting import wait_until

LANES = [(Lane("default", 0), 0), (Lane("mail", 0), 0)]


async def claim(claimer: Claimer, *types: str) -> list[int]:
    served = list(types or ("t",))
    batch = await claimer.claim(LANES, served, served, [], limit=10, look=10, free=10)
    return [job.id for job in batch.jobs]


async def test_a_pause_is_told_once_and_a_resume_too(store: PgJobStore) -> None:
    assert await store.pause(queue="mail", reason="provider down")
    assert not await store.pause(queue="mail", reason="another")
    assert await store.pause(task="mail")
    first, second = await store.paused()
    assert (first.kind, first.name, first.reason) == ("queue", "mail", "provider down")
    assert (second.kind, second.name, second.reason) == ("task", "mail", None)
    assert first.paused_at < second.paused_at
    assert await store.resume(queue="mail")
    assert not await store.resume(queue="mail")
    assert [pause.kind for pause in await store.paused()] == ["task"]


async def test_what_cannot_be_paused_is_refused(store: PgJobStore) -> None:
    with pytest.raises(ArgumentsError, match="give queue= or task=, one of them; got neither"):
        await store.pause()  # type: ignore[call-overload]  # refused by checkers too
    with pytest.raises(ArgumentsError, match="got both"):
        await store.resume(queue="a", task="b")  # type: ignore[call-overload]  # refused by checkers too
    for reason in ("", "x" * 1_001, "a\x00b"):
        with pytest.raises(OptionError, match=r"^reason: "):
            await store.pause(queue="a", reason=reason)
    with pytest.raises(OptionError, match=r"^queue"):
        await store.pause(queue="")
    assert await store.paused() == []
    await store.close()
    with pytest.raises(NotOpenError):
        await store.paused()


async def test_a_claim_passes_what_is_paused(
    store: PgJobStore, connection: asyncpg.Connection, claimer: Claimer
) -> None:
    plain, mail = await make_job(connection), await make_job(connection, queue="mail")
    other = await make_job(connection, job_type="u")
    await store.pause(queue="mail")
    await store.pause(task="u")
    assert await claim(claimer, "t", "u") == [plain]
    await store.resume(queue="mail")
    assert await claim(claimer, "t", "u") == [mail]
    await store.resume(task="u")
    assert await claim(claimer, "t", "u") == [other]


async def test_a_paused_queue_is_not_looked_at_and_jobs_of_a_paused_task_bar_nothing(
    store: PgJobStore, connection: asyncpg.Connection, claimer: Claimer
) -> None:
    await make_job(connection, queue="mail")
    await make_job(connection, job_type="u", max_attempts=1)
    behind = await make_job(connection)
    await store.pause(queue="mail")
    await store.pause(task="u")
    batch = await claimer.claim(LANES, ["t", "u"], ["t"], [], limit=10, look=10, free=0)
    assert ([job.id for job in batch.jobs], batch.is_barred) == ([behind], False)
    assert [look.lane.queue for look in batch.looks] == ["default"]


async def test_a_suspect_of_what_is_paused_waits_and_is_not_surveyed(
    store: PgJobStore, connection: asyncpg.Connection, claimer: Claimer
) -> None:
    await make_job(connection, queue="mail", lost=1)
    await make_job(connection, job_type="u", lost=1)
    await store.pause(queue="mail")
    assert (await claimer.survey(None)).has_suspect
    await store.pause(task="u")
    assert not (await claimer.survey(None)).has_suspect
    assert await claimer.claim_suspect(None, ["t", "u"], []) is None
    await store.resume(queue="mail")
    assert (await claimer.survey(["mail"])).has_suspect
    assert (await claimer.claim_suspect(None, ["t", "u"], [])) is not None


async def test_a_pause_waits_for_the_claims_under_way_and_later_claims_wait_for_it(
    dsn: str, store: PgJobStore, connection: asyncpg.Connection, claimer: Claimer
) -> None:
    await make_job(connection, queue="mail")
    async with connected(dsn) as claiming:
        under_way = claiming.transaction()
        await under_way.start()
        await claiming.execute("SELECT pqrun.paused()")
        pausing = asyncio.create_task(store.pause(queue="mail"))

        async def is_waiting() -> bool:
            query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            return bool(await connection.fetchval(query))

        await wait_until(is_waiting)
        later = asyncio.create_task(claim(claimer))
        await asyncio.sleep(0)
        now = await connection.fetchval("SELECT clock_timestamp()")
        await under_way.rollback()
        assert await pausing
        assert await later == []
    assert (await store.paused())[0].paused_at > now


async def test_a_pause_gives_up_when_a_claim_does_not_end(
    dsn: str, store: PgJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "PAUSE_SETTINGS", queues.PAUSE_SETTINGS.replace("500", "10"))
    monkeypatch.setattr(queues, "PAUSE_WAIT_SECONDS", 0.0)
    async with connected(dsn) as claiming, claiming.transaction():
        await claiming.execute("SELECT pqrun.paused()")
        with pytest.raises(DatabaseUnavailableError, match="the queue was not paused"):
            await store.pause(queue="mail")
    assert await store.paused() == []


async def test_a_beat_brings_the_pauses(store: PgJobStore, session: Session, worker: int) -> None:
    assert (await beat(session, worker)).pauses == Pauses()
    await store.pause(queue="mail")
    await store.pause(task="mail")
    (queue, task) = await store.paused()
    assert (await beat(session, worker)).pauses == Pauses({"mail": queue.paused_at}, {"mail": task.paused_at})


async def test_a_pause_and_a_resume_are_announced(dsn: str, store: PgJobStore) -> None:
    heard: list[object] = []
    async with connected(dsn) as listening:
        await listening.add_listener("pqrun", lambda *message: heard.append(message[3]))
        await store.pause(queue="mail")
        await store.pause(queue="mail")
        await wait_until(lambda: heard == ["pauses"])
        await store.resume(queue="mail")
        await wait_until(lambda: heard == ["pauses"] * 2)


async def test_what_is_paused_is_not_called_unserved(
    store: PgJobStore, connection: asyncpg.Connection, link: KeptLink
) -> None:
    for queue, job_type in [("mail", "t"), ("default", "u"), ("default", "t")]:
        await make_job(connection, queue=queue, job_type=job_type)
    await store.pause(queue="mail")
    await store.pause(task="u")
    assert await find_unserved(link) == [("default", "t")]


async def test_a_long_queue_hides_no_unserved_job_of_another(
    connection: asyncpg.Connection, session: Session, link: KeptLink
) -> None:
    await register(session, "one", "h", 1, serving=Serving(("a",), 1), job_types=["t"])
    await connection.execute("INSERT INTO pqrun.jobs (job_type, queue) SELECT 't', 'a' FROM generate_series(1, 2000)")
    await make_job(connection, queue="b")
    assert await find_unserved(link) == [("b", "t")]


async def test_queues_are_told_with_their_counts_and_pauses(
    store: PgJobStore, connection: asyncpg.Connection, session: Session
) -> None:
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    await make_job(connection, run_after=hour_ago)
    await make_job(connection, priority=5)
    await make_job(connection, lost=1)
    await make_job(connection, status=Status.RUNNING)
    await make_job(connection, status=Status.SCHEDULED)
    await make_job(connection, status=Status.SCHEDULED, attempts=2)
    await make_job(connection, status=Status.DONE, queue="over")
    await store.pause(queue="mail", reason="provider down")
    await register(session, "one", "h", 1, serving=Serving(("idle",), 3, {"idle": 3}), job_types=["t"])
    default, idle, mail = await store.queues()
    assert (default.name, default.ready, default.running, default.scheduled, default.failing) == ("default", 3, 1, 2, 1)
    assert default.at_least == frozenset()
    assert default.oldest_ready_seconds is not None
    assert 3_600 <= default.oldest_ready_seconds < 7_200
    assert (idle.name, idle.ready, idle.workers, idle.slots, idle.oldest_ready_seconds) == ("idle", 0, 1, 3, None)
    assert (mail.name, mail.reason, mail.workers) == ("mail", "provider down", 0)
    assert mail.paused_at == (await store.paused())[0].paused_at


async def test_counts_stop_at_a_bound_and_say_so(
    store: PgJobStore, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "COUNT_ROWS", 3)
    for _ in range(5):
        await make_job(connection)
        await make_job(connection, status=Status.SCHEDULED)
        await make_job(connection, status=Status.RUNNING)
    await make_job(connection, queue="other")
    default, other = await store.queues()
    assert (default.ready, default.scheduled, default.running) == (3, 3, 3)
    assert default.at_least == {"ready", "scheduled", "running", "failing"}
    assert other.ready == 1
    assert other.at_least == {"scheduled", "running", "failing"}


def test_a_pause_takes_back_claims_that_are_older() -> None:
    from tests.support.jobs import job_record

    now = datetime(2026, 1, 1, tzinfo=UTC)
    pauses = Pauses.of([("queue", "default", now), ("task", "u", now)])
    second = timedelta(seconds=1)
    assert pauses.takes_back(job_record(_locked_at=now - second))
    assert not pauses.takes_back(job_record(_locked_at=now + second))
    assert not pauses.takes_back(job_record(queue="other", _locked_at=now - second))
    assert pauses.takes_back(job_record(queue="other", job_type="u", _locked_at=now - second))
    assert Pauses().ends(pauses)
    assert not pauses.ends(Pauses())
    assert not Pauses()
    assert Pause("queue", "mail", now).reason is None
