"""Statistics in the table: added once, read as sums, pruned by age; and the plans of all three."""

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from pqrun.errors import OptionError
from pqrun.job.statistics import BOUNDS_MS, BUCKETS, MinuteCounts
from pqrun.store import PgJobStore
from pqrun.store.link import Link
from pqrun.store.statistics import Minute, add_minutes, prune_minutes
from tests.store.test_plans import explaining

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def counted(
    *, done: int = 0, failed: int = 0, ran: tuple[int, ...] = (), waited: tuple[float, ...] = ()
) -> MinuteCounts:
    counts = MinuteCounts()
    counts.other_times += ran
    counts.later_waits += waited
    counts.fold()
    counts.started, counts.done, counts.failed = done + failed, done, failed
    return counts


def minute(
    number: int, counts: MinuteCounts, *, worker: int = 1, queue: str = "default", job_type: str = "t"
) -> Minute:
    return Minute((NOON + timedelta(minutes=number)).timestamp(), worker, queue, job_type, counts)


async def test_rows_of_many_workers_are_read_as_sums_by_step_and_key(store: PgJobStore, link: Link) -> None:
    await add_minutes(
        link,
        [
            minute(0, counted(done=2, ran=(3, 700))),
            minute(0, counted(done=1, failed=1, ran=(3, 40)), worker=2),
            minute(1, counted(done=5, ran=(3,) * 5, waited=(0.5, 4000.0))),
            minute(1, counted(done=7), queue="mail", job_type="send"),
            minute(5, counted(done=100)),  # not asked for
        ],
    )
    until = NOON + timedelta(minutes=5)
    rows = await store.statistics(NOON, until)
    assert [(row.at, row.key, row.done) for row in rows] == [
        (NOON, "default", 3),
        (NOON + timedelta(minutes=1), "default", 5),
        (NOON + timedelta(minutes=1), "mail", 7),
    ]
    assert (rows[0].failed, rows[0].started) == (1, 4)
    assert (rows[0].run.count, rows[0].run.total_seconds) == (4, 0.746)
    assert rows[0].run.counts[BOUNDS_MS.index(5)] == 2
    assert (rows[1].wait.count, rows[1].wait.total_seconds, rows[1].wait.counts[BUCKETS - 1]) == (2, 4000.5, 1)
    five = timedelta(minutes=5)
    assert [(r.key, r.done) for r in await store.statistics(NOON, until, step=five, by="task")] == [
        ("send", 7),
        ("t", 8),
    ]
    assert [(r.key, r.done) for r in await store.statistics(NOON, until, step=five, by="all")] == [("", 15)]
    assert [r.done for r in await store.statistics(NOON, until, step=five, queue="mail")] == [7]
    assert [r.done for r in await store.statistics(NOON, until, step=five, job_type="t", by="all")] == [8]


async def test_a_row_that_is_tried_twice_counts_once(
    store: PgJobStore, link: Link, connection: asyncpg.Connection
) -> None:
    row = minute(0, counted(done=3))
    await add_minutes(link, [row])
    await add_minutes(link, [row, minute(1, counted(done=4))])  # the answer to the first was lost, say
    (all_of_it,) = await store.statistics(NOON, NOON + timedelta(hours=1), step=timedelta(hours=1))
    assert all_of_it.done == 7


async def test_adding_nothing_tells_the_clock_of_the_database(link: Link, connection: asyncpg.Connection) -> None:
    before = await connection.fetchval("SELECT date_part('epoch', clock_timestamp())")
    clock = await add_minutes(link, [])
    assert before <= clock <= await connection.fetchval("SELECT date_part('epoch', clock_timestamp())")


async def test_old_rows_go_in_pieces(
    link: Link, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pqrun.store.statistics.PRUNE_ROWS", 2)
    await add_minutes(link, [minute(number, counted(done=1)) for number in range(3)])
    await add_minutes(link, [Minute(datetime.now(UTC).timestamp(), 1, "default", "t", counted(done=1))])
    assert [await prune_minutes(link, age_seconds=3600) for _ in range(3)] == [True, False, False]
    assert await connection.fetchval("SELECT count(*) FROM pqrun.statistics") == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"since": datetime(2026, 1, 1)}, "since: expected a datetime with a time zone"),  # noqa: DTZ001  # naive on purpose
        ({"until": None}, "until: .*NoneType"),
        ({"step": timedelta(seconds=30)}, "step: expected a timedelta of whole minutes"),
        ({"step": timedelta(seconds=90)}, "step: "),
        ({"since": NOON - timedelta(days=100)}, "step: expected at most 20000 steps"),
        ({"by": "worker"}, "by: expected 'queue', 'task' or 'all'; got 'worker'"),
    ],
)
async def test_impossible_questions_are_refused(store: PgJobStore, options: dict[str, object], reason: str) -> None:
    asked: dict[str, object] = {"since": NOON, "until": NOON, **options}
    with pytest.raises(OptionError, match=reason):
        await store.statistics(**asked)  # type: ignore[arg-type]  # what a caller without a type checker does


@pytest.mark.parametrize("generic", [False, True])
async def test_a_day_in_a_year_of_rows_is_read_and_pruned_by_the_primary_key(
    dsn: str, connection: asyncpg.Connection, generic: bool
) -> None:
    await connection.execute(
        "INSERT INTO pqrun.statistics SELECT now() - n * interval '1 min', 1, 'q', 't', 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, '{1}', '{1}'"
        " FROM generate_series(1, 200000) n"
    )
    await connection.execute("VACUUM ANALYZE pqrun.statistics")
    now = datetime.now(UTC)
    async with explaining(dsn, kept=False) as explainer:
        asked = (now - timedelta(hours=1), now, 60.0, "queue", None, None)
        plan = await explainer.plan("read_statistics", *asked, generic=generic)
        assert plan.indexes.keys() == {"statistics_pkey"}, plan.text
        assert plan.buffers < 50, plan.text
    async with explaining(dsn, kept=True) as explainer:
        idle = await explainer.plan("prune_statistics", 10.0**9, 1000, generic=generic)
        assert idle.buffers < 20, idle.text
        plan = await explainer.plan("prune_statistics", 3600.0, 1000, generic=generic)
        assert "statistics" not in plan.scanned, plan.text
