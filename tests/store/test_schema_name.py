"""A schema may have any name that PostgreSQL keeps whole; every statement works in it, and no other schema is touched."""

import pytest

from pqrun.errors import ConfigurationError
from pqrun.job.outcome import Done, Failed
from pqrun.job.record import Claim
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from pqrun.store.claiming import Claimer, Lane
from pqrun.store.registry import beat, hold_lock, probe_locks, register
from pqrun.store.settling import settle
from pqrun.store.statements import check_schema_name, quote_identifier
from tests.store.listening import hearing
from tests.support.database import connected

AWKWARD = [
    "jobs",
    "Some Schema",
    "x\"y'z",
    'x"; DROP TABLE jobs; --',
    "back\\slash\\'",
    "größe/数据*/",
    "%s {0} :name ?",
    "n" * 48,
    "é" * 24,
    "user",
]


@pytest.mark.parametrize("schema", AWKWARD)
async def test_the_whole_life_of_a_job_works_in_a_schema_of_any_name(empty_dsn: str, schema: str) -> None:
    async with PgJobStore(empty_dsn, schema=schema) as store, hearing(empty_dsn, schema) as heard:
        await store.migrate()
        await store.check_schema()
        async with hearing(empty_dsn, f"{schema}:done") as ends:
            await live_a_life(store, empty_dsn)
            assert len(await ends.until_now()) == 2  # one awaited, one cancelled
        assert "ready:0:default" in await heard.until_now()
        async with connected(empty_dsn) as connection:
            rows = await connection.fetch("SELECT schemaname FROM pg_tables WHERE tablename = 'jobs'")
            assert [row["schemaname"] for row in rows] == [schema]


async def live_a_life(store: PgJobStore, dsn: str) -> None:
    link = store.open_link("claim", kept=True)
    async with link.transaction() as session:
        worker = await register(session, "w", "host", 1)
    async with store.connection() as keeper:
        assert await hold_lock(store.session(keeper), worker)
        assert (await beat(store.session(keeper), worker)).is_registered
        async with store.connection() as other:
            assert await probe_locks(store.session(other), [worker]) == frozenset()
    first = await store.enqueue("t", {"a": 1}, dedupe_key="k")
    async with connected(dsn) as outside:
        enqueue = f"SELECT id, created FROM {quote_identifier(store.schema)}.enqueue"
        rows = await outside.fetch(f"{enqueue}('t', '{{}}', dedupe_key => 'k')")
        assert [tuple(row) for row in rows] == [(first, False)]
        second = await outside.fetchval(f"{enqueue}('t', '{{}}')")
    claimer = Claimer(link, worker=worker, worker_id="w")
    batch = await claimer.claim([(Lane("default", 0), 0)], ["t"], ["t"], [], limit=10, look=10, free=10)
    assert [job.id for job in batch.jobs] == [first, second]
    claims = [Claim(job.id, job.claim_id or 0) for job in batch.jobs]
    written = await settle(link, [Done(claims[0], 1, '{"ok": true}'), Failed(claims[1], 1, "x")], awaited=[first])
    assert [s.status for s in written] == [Status.DONE, Status.FAILED]
    assert (await store.wait_end(first, timeout=0)).result == '{"ok": true}'
    await store.retry(second)
    assert await store.cancel(second) == "CANCELLED"
    await claimer.promote(None)
    await link.close()


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("", "1 to 48 bytes"),
        ("n" * 49, "1 to 48 bytes"),
        ("é" * 25, "1 to 48 bytes"),
        ("a$b", r"no '\$'"),
        ("a\nb", "control characters"),
        ("a\x00b", "control characters"),
        ("a\x1b[0mb", "control characters"),
        ("a\ud83d", "control characters"),
        ("pg_jobs", "not 'pg_"),
    ],
)
def test_a_name_that_cannot_be_kept_whole_is_refused(schema: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as caught:
        PgJobStore("postgresql://localhost/x", schema=schema)
    assert str(caught.value).isprintable()


def test_a_good_name_is_returned_unchanged() -> None:
    assert check_schema_name('x"y') == 'x"y'


async def test_two_schemas_of_one_database_do_not_meet(empty_dsn: str) -> None:
    async with (
        PgJobStore(empty_dsn, schema="one") as one,
        PgJobStore(empty_dsn, schema="other") as other,
        hearing(empty_dsn, "other") as heard,
    ):
        await one.migrate()
        await other.migrate()
        job_id = await one.enqueue("t", {}, dedupe_key="k")
        assert await other.get(job_id) is None
        assert await heard.until_now() == []
        async with one.connection() as lent, other.connection() as lent_other:
            worker = await register(one.session(lent), "w", "host", 1)
            assert worker == await register(other.session(lent_other), "w", "host", 1)
            assert await hold_lock(one.session(lent), worker)
            assert await hold_lock(other.session(lent_other), worker)
