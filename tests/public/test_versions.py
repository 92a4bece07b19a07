"""Payloads that live longer than code: versions and upgrades of a task, rolling deploys in both orders, and ``jobs.check()``."""

import dataclasses
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import asyncpg
import msgspec
import pytest
from pydantic import BaseModel
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from pqrun import (
    App,
    CheckProgress,
    FieldChange,
    JobContext,
    JobFailed,
    JsonObject,
    NotOpenError,
    OptionError,
    PayloadError,
    SchemaError,
    ShapeChange,
    Status,
    UndecodableJobs,
    UnservedJobs,
)
from pqrun.run import events
from pqrun.run.events import NeedsNewerCode, PutAside
from tests.public.at_work import at_work
from tests.support.rows import make_job
from tests.support.waiting import wait_until

SECRET = "payload-nobody-may-see"


class Old(BaseModel):
    user: str


class New(BaseModel):
    user_id: int
    locale: str = "en"


def old_app(dsn: str) -> App[None]:
    """The code of before the deploy."""
    jobs = App(dsn=dsn)

    @jobs.task(payload=Old)
    async def send(ctx: JobContext, payload: Old) -> dict[str, str]:
        return {"by": "old", "user": payload.user}

    return jobs


def from_1_to_2(payload: JsonObject) -> JsonObject:
    return {"user_id": int(str(payload["user"]).removeprefix("u"))}


def new_app(dsn: str) -> App[None]:
    """The code that is deployed."""
    jobs = App(dsn=dsn)

    @jobs.task(payload=New, version=2, upgrades={1: from_1_to_2})
    async def send(ctx: JobContext, payload: New) -> dict[str, object]:
        return {"by": "new", "user": payload.user_id}

    return jobs


async def defer(jobs: App[None], **fields: object) -> int:
    task = cast("Any", jobs._tasks["send"])
    return int((await task.defer(**fields)).id)


async def result(jobs: App[None], job_id: int) -> Any:
    return await jobs._tasks["send"].handle(job_id).result(timeout=30)


# Declaring.


@pytest.mark.parametrize("form", ["payload", "options"])
def test_impossible_versions_are_refused_where_they_are_declared(form: str) -> None:
    jobs = App(dsn="postgresql://localhost/never_opened")
    payload: Any = {"payload": New} if form == "payload" else {}

    async def send(ctx: JobContext, payload: New) -> None: ...

    for options, reason in (
        ({"version": 0}, "version: expected a whole number from 1"),
        ({"version": "2"}, "version: expected a whole number from 1"),
        ({"upgrades": {1: from_1_to_2}}, "upgrades: expected version= above 1 beside it"),
        ({"version": 3, "upgrades": {1: from_1_to_2}}, "upgrades: expected a function for each version from 1 to 2"),
    ):
        with pytest.raises(OptionError, match=reason):
            jobs.task(**payload, **cast("Any", options))(send)
    assert not jobs.handlers


async def test_every_way_of_deferring_stores_the_version(jobs: App[None], connection: asyncpg.Connection) -> None:
    @jobs.task(version=4)
    async def add(ctx: JobContext, n: int) -> None: ...

    async with jobs:
        await add.defer(1)
        await jobs.defer_many([add.call(n) for n in range(3)])
        await jobs.defer_many([add.call(n) for n in range(300)])  # by COPY
        async with jobs.store.transaction() as inside:
            await add.options(connection=inside, dedupe_key="k").defer(2)
        await jobs.store.enqueue("low_level", {}, payload_version=3)
        with pytest.raises(OptionError, match="payload_version"):
            await jobs.store.enqueue("low_level", {}, payload_version=0)
    rows = await connection.fetch("SELECT job_type, payload_version, count(*) FROM pqrun.jobs GROUP BY 1, 2 ORDER BY 1")
    assert [tuple(row) for row in rows] == [("add", 4, 305), ("low_level", 3, 1)]


# Reading.


async def test_a_job_of_an_older_version_is_upgraded_and_runs(dsn: str) -> None:
    async with old_app(dsn) as before:
        job_id = await defer(before, user="u7")
    jobs = new_app(dsn)
    async with at_work(jobs):
        assert await result(jobs, job_id) == {"by": "new", "user": 7}


async def test_an_upgrade_that_raises_fails_the_job_at_once_and_shows_no_value(dsn: str) -> None:
    async with old_app(dsn) as before:
        job_id = await defer(before, user=SECRET)
    jobs = new_app(dsn)
    async with at_work(jobs) as told:
        with pytest.raises(JobFailed) as caught:
            await result(jobs, job_id)
        job = await jobs.store.get(job_id)
    assert job is not None
    assert job.last_error == (
        "PayloadDecodeError: send, payload of version 1 for 2: the upgrade from version 1 raised ValueError"
    )
    assert (job.status, job.attempts) == (Status.FAILED, 1)
    assert SECRET not in repr(told.of(events.Failed)) + str(caught.value)


async def test_a_newer_job_is_left_by_an_old_worker_and_done_by_a_new_one(
    dsn: str, connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = old_app(dsn), new_app(dsn)
    async with after, at_work(before) as told:
        first = await defer(after, user_id=1)
        await told.wait_for(PutAside)
        second = await defer(after, user_id=2)
        await told.wait_for(PutAside, count=2)
        own = await defer(before, user="u3")
        assert await result(before, own) == {"by": "old", "user": "u3"}  # its own jobs go on
        job = await after.store.get(first)
        assert job is not None
        assert (job.status, job.attempts, job.payload_version) == (Status.SCHEDULED, 0, 2)
        assert job.last_error == (
            "PayloadVersionError: send: the payload has version 2, and this code knows version 1: it needs newer code"
        )
        assert job.run_after - job.updated_at > timedelta(seconds=10)  # not claimed again at once
    assert len(told.of(PutAside)) == 2
    assert [(event.job_type, event.version, event.known) for event in told.of(NeedsNewerCode)] == [("send", 2, 1)]
    assert caplog.text.count("needs newer code: its payload has version 2, this worker knows version 1") == 1
    await connection.execute("UPDATE pqrun.jobs SET run_after = now()")
    async with at_work(after):
        assert [await result(after, job_id) for job_id in (first, second)] == [
            {"by": "new", "user": 1},
            {"by": "new", "user": 2},
        ]


async def test_a_newer_job_with_one_attempt_keeps_it(dsn: str, connection: asyncpg.Connection) -> None:
    after = new_app(dsn)
    task = cast("Any", after._tasks["send"])
    async with after, at_work(old_app(dsn)) as told:
        job_id = (await task.options(max_attempts=1).defer(user_id=1)).id
        await told.wait_for(PutAside)
        assert (await after.store.cancel(job_id)) == "CANCELLED"


class InnerModel(BaseModel):
    a: int


class OuterModel(BaseModel):
    inner: InnerModel
    many: list[InnerModel] = []


@dataclasses.dataclass
class InnerDataclass:
    a: int


@dataclasses.dataclass
class OuterDataclass:
    inner: InnerDataclass


@pydantic_dataclass
class OuterPydanticDataclass:
    inner: InnerDataclass


class InnerStruct(msgspec.Struct):
    a: int


class OuterStruct(msgspec.Struct):
    inner: InnerStruct


class InnerDict(TypedDict):
    a: int


class OuterDict(TypedDict):
    inner: InnerDict


KINDS: list[Any] = [OuterModel, OuterDataclass, OuterPydanticDataclass, OuterStruct, OuterDict]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("upgraded", [False, True])
def test_unknown_fields_are_tolerated_on_reading_at_every_level(kind: Any, upgraded: bool) -> None:
    jobs = App(dsn="postgresql://localhost/never_opened")

    @jobs.task(payload=kind, version=2, upgrades={1: lambda payload: {**payload, "older": 1}})
    async def run(ctx: JobContext, payload: object) -> None: ...

    stored = json.dumps({"inner": {"a": 1, "new": True}, "new": [1]})
    payload = run.handler.read(stored, 1 if upgraded else 2)
    inner = payload["inner"] if isinstance(payload, dict) else cast("Any", payload).inner
    assert (inner["a"] if isinstance(inner, dict) else inner.a) == 1


BUILDS: list[tuple[Any, Callable[[Any], Any]]] = [
    (OuterModel, lambda task: task.call(inner={"a": 1, "new": True})),
    (OuterModel, lambda task: task.call(inner=InnerModel(a=1), new=1)),
    (OuterModel, lambda task: task.call(inner=InnerModel(a=1), many=[{"a": 1, "new": True}])),
    (OuterDataclass, lambda task: task.call(inner=InnerDataclass(1), new=1)),
    (OuterPydanticDataclass, lambda task: task.call(inner={"a": 1, "new": True})),
    (OuterStruct, lambda task: task.call(inner=InnerStruct(1), new=1)),
    (OuterDict, lambda task: task.call({"inner": {"a": 1, "new": True}})),
    (OuterDict, lambda task: task.call({"inner": {"a": 1}, "new": True})),
]


@pytest.mark.parametrize(("kind", "call"), BUILDS)
def test_unknown_fields_are_refused_on_deferring_at_every_level(kind: Any, call: Callable[[Any], Any]) -> None:
    jobs = App(dsn="postgresql://localhost/never_opened")

    @jobs.task(payload=kind)
    async def run(ctx: JobContext, payload: object) -> None: ...

    with pytest.raises(PayloadError, match="new"):
        call(run)


# Checking.


async def test_a_check_of_an_app_that_reads_all_is_clean(dsn: str) -> None:
    async with old_app(dsn) as before:
        await defer(before, user="u1")
    async with new_app(dsn) as jobs:
        await defer(jobs, user_id=1)
        report = await jobs.check()
    assert report.is_clean
    assert (report.waiting, report.decoded, report.is_sample) == (2, 2, False)
    assert (report.undecodable, report.unserved, report.shapes) == ((), (), ())


async def test_jobs_that_cannot_be_decoded_are_told_by_task_with_first_error_and_ids(
    dsn: str, connection: asyncpg.Connection
) -> None:
    bad = [await make_job(connection, job_type="send", payload=json.dumps({"user": SECRET})) for _ in range(25)]
    newest = await make_job(connection, job_type="send", payload='{"user_id": 1}', payload_version=3)
    await make_job(connection, job_type="send", payload='{"user_id": 1}', payload_version=2)
    for status in (Status.DONE, Status.FAILED, Status.CANCELLED):
        await make_job(connection, job_type="send", payload='{"nothing": 1}', status=status)
    running = await make_job(connection, job_type="send", payload='{"nothing": 1}', status=Status.RUNNING)
    async with new_app(dsn) as jobs:
        report = await jobs.check()
    assert not report.is_clean
    assert report.undecodable == (
        UndecodableJobs(
            job_type="send",
            count=27,
            versions=(1, 3),
            first_error="send, payload of version 1 for 2: the upgrade from version 1 raised ValueError",
            ids=tuple(bad[:20]),
        ),
    )
    assert (report.waiting, report.decoded) == (28, 28)
    assert newest < running


async def test_a_validator_that_raises_anything_is_a_finding_without_its_message(
    dsn: str, connection: asyncpg.Connection
) -> None:
    jobs = App(dsn=dsn)

    class Strange:
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            from pydantic_core import core_schema

            def check(value: object) -> object:
                raise RuntimeError(SECRET)

            return core_schema.no_info_plain_validator_function(check)

    @jobs.task
    async def run(ctx: JobContext, n: Strange) -> None: ...

    await make_job(connection, job_type="run", payload='{"n": 1}')
    async with jobs:
        (found,) = (await jobs.check()).undecodable
    assert SECRET not in found.first_error


async def test_types_that_no_task_serves_are_told_with_their_queues_but_not_pqruns_own(
    dsn: str, connection: asyncpg.Connection
) -> None:
    for queue in ("b", "a", "a"):
        await make_job(connection, job_type="gone", queue=queue)
    await make_job(connection, job_type="__cleanup")
    async with new_app(dsn) as jobs:
        report = await jobs.check()
        assert report.unserved == (UnservedJobs(job_type="gone", count=3, queues=("a", "b")),)
        assert not report.is_clean
        assert (report.waiting, report.decoded) == (3, 0)
        only = await jobs.check(tasks=["send"])
        assert only.is_clean
        assert only.waiting == 0
        with pytest.raises(OptionError, match="no task 'sned'; did you mean 'send'"):
            await jobs.check(tasks=["sned"])


async def test_the_sample_comes_first_and_takes_some_of_each_task_and_version(
    dsn: str, connection: asyncpg.Connection
) -> None:
    insert = "INSERT INTO pqrun.jobs (job_type, payload, payload_version) SELECT 'send', $1::jsonb, $2 FROM generate_series(1, $3)"
    await connection.execute(insert, '{"user_id": 1}', 2, 3_000)
    await connection.execute(insert, '{"user": "x"}', 1, 1)  # one in three thousand
    await connection.execute(insert, '{"user_id": 1}', 2, 3_000)
    told: list[CheckProgress] = []
    async with new_app(dsn) as jobs:
        sampled = await jobs.check(sample=10, sample_only=True, on_progress=told.append)
        assert (sampled.waiting, sampled.decoded, sampled.is_sample) == (6_001, 11, True)
        assert [found.count for found in sampled.undecodable] == [1]
        assert told[-1] == CheckProgress("sample", 11, 11, sampled.undecodable)
        told.clear()
        report = await jobs.check(sample=10, on_progress=told.append)
    assert (report.decoded, report.is_sample) == (6_001, False)
    assert [found.count for found in report.undecodable] == [1]
    phases = [progress.phase for progress in told]
    assert phases == sorted(phases, key=["counting", "sample", "all"].index)
    assert told[-1] == CheckProgress("all", 6_001, 6_001, report.undecodable)


async def test_a_sample_that_holds_all_jobs_is_no_sample(dsn: str) -> None:
    async with new_app(dsn) as jobs:
        await defer(jobs, user_id=1)
        assert not (await jobs.check(sample_only=True)).is_sample
        for sample in (0, -1, True, "x"):
            with pytest.raises(OptionError, match="sample: expected a whole number from 1"):
                await jobs.check(sample=cast("Any", sample))


async def test_a_check_needs_an_open_app_and_its_schema(dsn: str, empty_dsn: str) -> None:
    with pytest.raises(NotOpenError):
        await new_app(dsn).check()
    async with new_app(empty_dsn) as jobs:
        with pytest.raises(SchemaError, match="pqrun migrate"):
            await jobs.check()


async def test_a_check_works_through_a_handed_in_pool_and_leaves_its_connections_as_they_were(dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        jobs = App(pool=pool)

        @jobs.task
        async def run(ctx: JobContext, n: int) -> None: ...

        async with jobs:
            await run.defer(1)
            assert (await jobs.check()).is_clean
            await run.defer(2)  # the connection can write, and sorts its plans out as before
            async with pool.acquire() as lent:
                assert await lent.fetchval("SHOW enable_seqscan") == "on"


# Shapes.


async def noted(jobs: App[None], connection: asyncpg.Connection, count: int = 1) -> None:
    """Run a worker of this code until it has noted its shapes."""

    async def is_noted() -> bool:
        return bool(await connection.fetchval("SELECT count(*) FROM pqrun.task_shapes") >= count)

    async with at_work(jobs):
        await wait_until(is_noted)


def app_of(dsn: str, model: Any, **options: Any) -> App[None]:
    jobs = App(dsn=dsn)

    @jobs.task(payload=model, **options)
    async def send(ctx: JobContext, payload: object) -> None: ...

    return jobs


async def shapes(jobs: App[None]) -> tuple[ShapeChange, ...]:
    async with jobs:
        report = await jobs.check()
    assert report.is_clean is not any(shape.is_problem for shape in report.shapes)
    return report.shapes


class Added(BaseModel):
    user: str
    locale: str = "en"


async def test_the_same_shape_is_no_finding(dsn: str, connection: asyncpg.Connection) -> None:
    await noted(app_of(dsn, Old), connection)
    assert await shapes(app_of(dsn, Old)) == ()
    assert await shapes(app_of(dsn, Old, version=2)) == ()


async def test_a_new_field_with_a_default_is_told_and_no_problem(dsn: str, connection: asyncpg.Connection) -> None:
    await noted(app_of(dsn, Old), connection)
    (change,) = await shapes(app_of(dsn, Added))
    assert (change.version, change.noted_version, change.is_problem) == (1, 1, False)
    assert change.changes == (
        FieldChange(field="locale", change="added", before=None, after="string", is_additive=True),
    )


async def test_a_changed_shape_under_the_same_version_is_a_problem_that_says_what_to_do(
    dsn: str, connection: asyncpg.Connection
) -> None:
    await noted(app_of(dsn, Old), connection)
    (change,) = await shapes(app_of(dsn, New))
    assert change.is_problem
    assert {one.field: one.change for one in change.changes} == {
        "user": "removed",
        "user_id": "added",
        "locale": "added",
    }
    assert "state version=2 and upgrades={1: ...}" in change.advice


async def test_a_new_version_with_an_upgrade_path_is_no_problem_and_without_one_it_is(
    dsn: str, connection: asyncpg.Connection
) -> None:
    await noted(app_of(dsn, Old), connection)
    (covered,) = await shapes(app_of(dsn, New, version=2, upgrades={1: from_1_to_2}))
    assert (covered.is_problem, covered.version, covered.noted_version) == (False, 2, 1)
    (uncovered,) = await shapes(app_of(dsn, New, version=2))
    assert uncovered.is_problem
    assert "upgrades= a function for version 1" in uncovered.advice


async def test_a_worker_of_the_new_code_notes_its_shape_and_the_finding_is_gone(
    dsn: str, connection: asyncpg.Connection
) -> None:
    await noted(app_of(dsn, Old), connection)
    after = app_of(dsn, New, version=2, upgrades={1: from_1_to_2})
    await noted(after, connection, 2)
    assert await shapes(after) == ()
    assert await shapes(app_of(dsn, Old)) == ()  # and so would be a deploy of the code of before
