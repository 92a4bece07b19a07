"""A worker's note of what its payloads look like."""

from collections.abc import Iterable

import asyncpg
import msgspec
import pytest

from pqrun import App
from pqrun.errors import DatabaseUnavailableError, StoreError
from pqrun.job.policy import LoopErrorPolicy
from pqrun.job.shape import Shape
from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.run.events import Events
from pqrun.run.shapes import ShapeNote
from pqrun.store import PgJobStore
from pqrun.store.checking import Noted
from tests.run.working import working
from tests.support.waiting import Recorder, wait_until


class Kept:
    """Keeps what it is given, unless it is to fail first."""

    def __init__(self, *failures: StoreError) -> None:
        self.failures = list(failures)
        self.noted: list[Noted] = []
        self.calls = 0

    async def note_shapes(self, shapes: Iterable[Noted]) -> None:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        self.noted += shapes


def app() -> App[None]:
    jobs = App(dsn="postgresql://localhost/never_opened")

    @jobs.task(version=2)
    async def add(ctx: JobContext, a: int, b: int = 2) -> None: ...

    @jobs.task
    async def other(ctx: JobContext) -> None: ...

    return jobs


def note(kept: Kept) -> tuple[ShapeNote, Recorder]:
    stream = Events()
    return ShapeNote(kept, list(app().handlers.values()), events=stream, policy=LoopErrorPolicy()), Recorder(stream)


async def test_each_task_is_noted_with_its_version() -> None:
    kept = Kept()
    noting, _ = note(kept)
    noting.service.start()
    await wait_until(lambda: kept.noted)
    await noting.service.stop(5)
    assert [(one.job_type, one.version) for one in kept.noted] == [("add", 2), ("other", 1)]
    shape = msgspec.json.decode(kept.noted[0].shape, type=Shape)
    assert {name: field.required for name, field in shape.items()} == {"a": True, "b": False}
    assert kept.calls == 1


async def test_a_database_that_is_away_is_asked_again() -> None:
    kept = Kept(DatabaseUnavailableError("away"))
    noting, heard = note(kept)
    noting.service.start()
    await wait_until(lambda: kept.noted)
    await noting.service.stop(5)
    assert [event.duty for event in heard.of(events.LoopFailed)] == ["note shapes"]


async def test_a_role_that_may_not_write_it_works_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    refused = StoreError("permission denied for table task_shapes (SQLSTATE 42501)")
    refused.sqlstate = "42501"
    kept = Kept(refused)
    noting, heard = note(kept)
    with caplog.at_level("INFO", logger="pqrun"):
        noting.service.start()
        await wait_until(lambda: "not noted for 'pqrun check': permission denied" in caplog.text)
    await noting.service.stop(5)
    assert not heard.seen
    assert kept.calls == 1


async def test_a_worker_without_tasks_notes_nothing(store: PgJobStore, connection: asyncpg.Connection) -> None:
    async def quick(ctx: object) -> None:
        return None

    async with working(store, {"t": quick}) as crew:
        await crew.heard.wait_for(events.WorkerStarted)
    assert await connection.fetchval("SELECT count(*) FROM pqrun.task_shapes") == 0
