"""Headers: texts that travel beside the payload, from every way to defer to the handler, and through every state."""

from datetime import timedelta

import asyncpg
import msgspec
import pytest

from pqrun import App, ArgumentsError, Deferral, JobContext, OptionError, PgJobStore, Status
from pqrun.job.options import HEADERS_MAX_BYTES
from pqrun.run import events
from pqrun.testing import drain, inline
from tests.run.working import working
from tests.support.waiting import wait_until

AWKWARD = {"tab\t": "back\\slash\nline", "quote\"'": "é\x1b", "": ""}


class Told:
    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []


def shop(dsn: str) -> tuple[App[None], Told]:
    return App(dsn=dsn), Told()


async def test_headers_travel_from_each_way_to_defer_to_the_handler(dsn: str) -> None:
    jobs, told = shop(dsn)

    @jobs.task(dedupe_key="{n}")
    async def t(ctx: JobContext, n: int) -> None:
        told.headers.append(ctx.job.headers)

    @jobs.task
    async def keyless(ctx: JobContext, n: int) -> None:
        told.headers.append(ctx.job.headers)

    async with jobs:
        await t.options(headers=AWKWARD).defer(n=1)
        assert (await t.options(headers={"x": "later"}).defer(n=1)).created is False
        await t.defer(n=2)
        async with jobs.store.transaction() as connection:
            await t.options(headers={"in": "tx"}, connection=connection).defer(n=3)
        await jobs.defer_many([t.options(headers={"m": str(n)}).call(n=n) for n in (4, 5)])
        await drain(jobs)
        assert told.headers == [AWKWARD, {}, {"in": "tx"}, {"m": "4"}, {"m": "5"}]
        told.headers.clear()
        # So many go by COPY.
        await jobs.defer_many([keyless.options(headers={**AWKWARD, "n": str(n)}).call(n=n) for n in range(300)])
        await drain(jobs)
        assert told.headers == [{**AWKWARD, "n": str(n)} for n in range(300)]


async def test_pqrun_enqueue_takes_headers_and_refuses_what_are_none(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    row = await connection.fetchrow("""SELECT * FROM pqrun.enqueue('t', '{}', headers => '{"a": "b"}')""")
    assert row is not None
    job = await store.get(row["id"])
    assert job is not None
    assert job.headers == {"a": "b"}
    for bad in ("[]", "1", '{"a": 1}', '{"a": {"b": "c"}}', '{"a": ["b"]}', '{"a": null}'):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="headers: expected a JSON object of texts"):
            await connection.fetch("SELECT pqrun.enqueue('t', '{}', headers => $1::text::jsonb)", bad)
    long = msgspec.json.encode({"a": "x" * HEADERS_MAX_BYTES}).decode()
    with pytest.raises(asyncpg.InvalidParameterValueError, match="headers: expected at most 16384 bytes"):
        await connection.fetch("SELECT pqrun.enqueue('t', '{}', headers => $1::text::jsonb)", long)


async def test_headers_stay_with_a_job_through_failure_cancel_and_retry(store: PgJobStore) -> None:
    async def fails(ctx: JobContext) -> None:
        raise ValueError

    headers = {"traceparent": "00-1-2-01"}
    failing = await store.enqueue("fails", {}, headers=headers, max_attempts=1)
    waiting = await store.enqueue("other", {}, headers=headers, run_after=timedelta(hours=1))
    async with working(store, {"fails": fails}) as crew:
        await crew.heard.wait_for(events.Failed)
        await store.retry(failing)
        await crew.heard.wait_for(events.Failed, count=2)
        await store.cancel(waiting)

        async def kept() -> list[tuple[Status, dict[str, str]]]:
            found = [await store.get(job_id) for job_id in (failing, waiting)]
            return [(job.status, job.headers) for job in found if job is not None]

        await wait_until(lambda: kept())
        assert await kept() == [(Status.FAILED, headers), (Status.CANCELLED, headers)]
        report = await store.select([waiting]).retry()
        assert report.done == 1
        assert await kept() == [(Status.FAILED, headers), (Status.READY, headers)]


async def test_a_hook_adds_headers_to_those_of_the_call(dsn: str) -> None:
    jobs, told = shop(dsn)

    @jobs.task
    async def t(ctx: JobContext) -> None:
        told.headers.append(ctx.job.headers)

    @jobs.before_defer
    def add(deferral: Deferral) -> Deferral:
        with pytest.raises(TypeError):
            deferral.headers["x"] = "y"  # type: ignore[index]  # a Mapping: only replace changes anything
        return deferral.replace(headers={**deferral.headers, "tenant": "a"})

    async with jobs:
        await t.options(headers={"own": "1"}).defer()
        await drain(jobs)
        with inline(jobs):
            await t.defer()
    assert told.headers == [{"own": "1", "tenant": "a"}, {"tenant": "a"}]


async def test_headers_none_clears_those_of_an_earlier_options(dsn: str) -> None:
    jobs, _ = shop(dsn)

    @jobs.task
    async def t(ctx: JobContext) -> None: ...

    async with jobs:
        job = await t.options(headers={"a": "b"}).options(headers=None).defer()
        assert (await job.job()).headers == {}


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([], "a dict of text to text, or None for none; got list"),
        ({"a": 1}, "a dict of text to text; got one of str to int"),
        ({1: "a"}, "got one of int to str"),
        ({"a": "\0"}, "text that PostgreSQL can store"),
        ({"a\ud800": "b"}, "text that PostgreSQL can store"),
        ({"a": "x" * HEADERS_MAX_BYTES}, "at most 16384 bytes as JSON"),
    ],
)
async def test_impossible_headers_are_refused(store: PgJobStore, headers: object, reason: str) -> None:
    jobs = App(dsn="postgresql://localhost/x")

    @jobs.task
    async def t(ctx: JobContext) -> None: ...

    with pytest.raises(OptionError, match=f"^headers: expected .*{reason}"):
        t.options(headers=headers)  # type: ignore[arg-type]  # what a caller without a type checker does
    with pytest.raises(OptionError, match=r"^headers: "):
        await store.enqueue("t", {}, headers=headers)  # type: ignore[arg-type]  # the same


def test_a_schedule_keeps_no_headers_and_says_so() -> None:
    jobs = App(dsn="postgresql://localhost/x")

    @jobs.task
    async def t(ctx: JobContext) -> None: ...

    with pytest.raises(ArgumentsError, match="the call carries headers"):
        jobs.schedule("s", t.options(headers={"a": "b"}).call(), cron="* * * * *")


async def test_headers_that_are_not_text_are_left_out_when_they_are_read(
    store: PgJobStore, connection: asyncpg.Connection
) -> None:
    query = """INSERT INTO pqrun.jobs (job_type, headers) VALUES ('t', '{"a": 1, "b": "c"}') RETURNING id"""
    job = await store.get(await connection.fetchval(query))
    assert job is not None
    assert job.headers == {"b": "c"}
