"""What the table itself refuses: a row that says something a job cannot be. Plain SQL that makes sense is let through."""

from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pqrun.errors import PqrunError
from pqrun.job.outcome import Done, Failed, Outcome, Recovered, Released, Retrying
from pqrun.job.record import Claim
from pqrun.job.state import ACTIVE, FINISHED, Status
from pqrun.store import PgJobStore
from pqrun.store.claiming import Claimer, Lane
from pqrun.store.link import Link
from pqrun.store.settling import settle
from tests.support.database import Databases, connected, run
from tests.support.rows import make_job, make_worker

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOCK = {"locked_at": NOW, "locked_by": "w"}

REFUSED: list[tuple[Status, dict[str, Any], str]] = [
    (Status.RUNNING, {"locked_at": None}, "jobs_active_state"),
    (Status.RUNNING, {"locked_by": None}, "jobs_active_state"),
    (Status.RUNNING, {"finished_at": NOW}, "jobs_active_state"),
    (Status.RUNNING, {"duration_ms": 1}, "jobs_active_state"),
    (Status.RUNNING, {"result": "{}"}, "jobs_active_state"),
    (Status.RUNNING, {"attempts": 6}, "jobs_active_state"),
    (Status.READY, {"locked_at": NOW}, "jobs_active_state"),
    (Status.READY, {"locked_by": "w"}, "jobs_active_state"),
    (Status.READY, {"worker": 1}, "jobs_active_state"),
    (Status.READY, {"claim_id": 1}, "jobs_active_state"),
    (Status.READY, {"cancel_requested_at": NOW}, "jobs_active_state"),
    (Status.READY, {"attempts": 5}, "jobs_active_state"),
    (Status.READY, {"finished_at": NOW}, "jobs_active_state"),
    (Status.READY, {"result": "{}"}, "jobs_active_state"),
    (Status.SCHEDULED, LOCK, "jobs_active_state"),
    (Status.SCHEDULED, {"claim_id": 1}, "jobs_active_state"),
    (Status.SCHEDULED, {"attempts": 5}, "jobs_active_state"),
    (Status.SCHEDULED, {"duration_ms": 1}, "jobs_active_state"),
    (Status.DONE, {"finished_at": None}, "jobs_finished_state"),
    (Status.DONE, {"result": "[1]"}, "jobs_finished_state"),
    (Status.DONE, {"result": "5"}, "jobs_finished_state"),
    (Status.DONE, {"result": "null"}, "jobs_finished_state"),
    (Status.DONE, {"payload": "[1]"}, "jobs_finished_values"),
    (Status.DONE, {"attempts": 6}, "jobs_finished_values"),
    (Status.DONE, {"attempts": -1}, "jobs_finished_values"),
    (Status.DONE, {"run_after": datetime.max.replace(tzinfo=UTC)}, "jobs_finished_values"),
    (Status.DONE, {"locked_at": datetime.min.replace(tzinfo=UTC)}, "jobs_finished_values"),
    (Status.DONE, {"duration_ms": -1}, "jobs_finished_values"),
    (Status.FAILED, {"finished_at": None}, "jobs_finished_state"),
    (Status.FAILED, {"result": "{}"}, "jobs_finished_state"),
    (Status.FAILED, LOCK, "jobs_finished_state"),
    (Status.CANCELLED, {"finished_at": None}, "jobs_finished_state"),
    (Status.CANCELLED, {"result": "{}"}, "jobs_finished_state"),
    (Status.CANCELLED, LOCK, "jobs_finished_state"),
    (Status.READY, {"payload": "[1]"}, "jobs_active_values"),
    (Status.READY, {"payload": "null"}, "jobs_active_values"),
    (Status.READY, {"payload": '"x"'}, "jobs_active_values"),
    (Status.RUNNING, {"attempts": 0, "max_attempts": 0}, "jobs_active_values"),
    (Status.READY, {"max_attempts": 0}, "jobs_active_state"),
    (Status.READY, {"attempts": -1}, "jobs_active_values"),
    (Status.READY, {"timeout_seconds": 0.0}, "jobs_active_values"),
    (Status.READY, {"timeout_seconds": -1.0}, "jobs_active_values"),
    (Status.READY, {"timeout_seconds": float("nan")}, "jobs_active_values"),
    (Status.READY, {"timeout_seconds": float("inf")}, "jobs_active_values"),
    (Status.READY, {"job_type": ""}, "jobs_active_names"),
    (Status.READY, {"job_type": "t" * 201}, "jobs_active_names"),
    (Status.READY, {"queue": ""}, "jobs_active_names"),
    (Status.READY, {"queue": "q" * 201}, "jobs_active_names"),
    (Status.READY, {"dedupe_key": ""}, "jobs_active_names"),
    (Status.READY, {"dedupe_key": "é" * 101}, "jobs_active_names"),
    (Status.SCHEDULED, {"run_after": datetime.max.replace(tzinfo=UTC)}, "jobs_active_values"),
    (Status.READY, {"run_after": datetime.min.replace(tzinfo=UTC)}, "jobs_active_values"),
    (Status.RUNNING, {"locked_at": datetime.min.replace(tzinfo=UTC)}, "jobs_active_values"),
    (Status.READY, {"backoff_seconds": [1.0, None]}, "jobs_active_values"),
    (Status.READY, {"backoff_seconds": [-1.0]}, "jobs_active_values"),
    (Status.READY, {"backoff_seconds": [float("nan")]}, "jobs_active_values"),
    (Status.READY, {"backoff_seconds": [1e300]}, "jobs_active_values"),
]


async def test_a_good_row_of_each_state_is_accepted_where_it_belongs(connection: asyncpg.Connection) -> None:
    for status in Status:
        job_id = await make_job(connection, status=status)
        part = await connection.fetchval("SELECT tableoid::regclass::text FROM pqrun.jobs WHERE id = $1", job_id)
        assert part == ("pqrun.jobs_active" if status in ACTIVE else "pqrun.jobs_finished")


async def test_what_a_job_cannot_be_is_refused(connection: asyncpg.Connection) -> None:
    for status, columns, constraint in REFUSED:
        with pytest.raises(asyncpg.CheckViolationError) as caught:
            await make_job(connection, status=status, **columns)
        assert caught.value.constraint_name == constraint, (status, columns)
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 0


async def test_what_every_job_has_cannot_be_null(connection: asyncpg.Connection) -> None:
    job_id = await make_job(connection)
    for column in ("job_type", "queue", "payload", "priority", "attempts", "max_attempts", "run_after", "place"):
        with pytest.raises(asyncpg.NotNullViolationError):
            await connection.execute(f"UPDATE pqrun.jobs SET {column} = NULL WHERE id = {job_id}")


async def test_an_unknown_status_is_refused(connection: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        await connection.execute("INSERT INTO pqrun.jobs (job_type, status) VALUES ('t', 'LATER')")


async def test_nul_cannot_be_stored(connection: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.CharacterNotInRepertoireError):
        await make_job(connection, job_type="a\x00b")
    with pytest.raises(asyncpg.UntranslatableCharacterError):
        await make_job(connection, payload='{"a": "\\u0000"}')


async def test_a_key_is_unique_among_active_jobs_of_a_type_only(connection: asyncpg.Connection) -> None:
    await make_job(connection, dedupe_key="k")
    for status in (Status.READY, Status.SCHEDULED, Status.RUNNING):
        with pytest.raises(asyncpg.UniqueViolationError):
            await make_job(connection, status=status, dedupe_key="k")
    for status in FINISHED:
        await make_job(connection, status=status, dedupe_key="k")
    await make_job(connection, job_type="other", dedupe_key="k")


async def test_plain_sql_may_finish_a_job(connection: asyncpg.Connection, store: PgJobStore) -> None:
    job_id = await store.enqueue("t", {}, dedupe_key="k")
    await connection.execute(
        "UPDATE pqrun.jobs SET status = 'DONE', attempts = 1, finished_at = now(), duration_ms = 1, result = '{\"ok\": true}' "
        "WHERE status = 'READY'"
    )
    job = await store.get(job_id)
    assert job is not None
    assert (job.status, job.attempts, job.duration_ms, job.result) == (Status.DONE, 1, 1, {"ok": True})
    assert await parts_of(connection) == [(job_id, "pqrun.jobs_finished")]
    assert await store.enqueue("t", {}, dedupe_key="k") != job_id  # the key is free


async def test_plain_sql_may_insert_with_defaults_and_delete(connection: asyncpg.Connection, store: PgJobStore) -> None:
    job_id = await connection.fetchval("INSERT INTO pqrun.jobs (job_type) VALUES ('t') RETURNING id")
    job = await store.get(job_id)
    assert job is not None
    assert (job.status, job.queue, job.payload, job.max_attempts, job.priority) == (Status.READY, "default", {}, 5, 0)
    for status in Status:
        await make_job(connection, status=status)
    assert await connection.execute("DELETE FROM pqrun.jobs") == f"DELETE {len(Status) + 1}"
    assert await store.get(job_id) is None


async def test_plain_sql_cannot_move_a_job_into_a_state_that_it_cannot_have(connection: asyncpg.Connection) -> None:
    await make_job(connection)
    for update in (
        "status = 'DONE'",
        "status = 'RUNNING'",
        "status = 'FAILED', result = '{}'",
        "attempts = max_attempts",
    ):
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute(f"UPDATE pqrun.jobs SET {update}")


async def test_ids_are_bigint_beyond_two_to_the_31(connection: asyncpg.Connection, store: PgJobStore) -> None:
    await connection.execute("SELECT setval('pqrun.jobs_id_seq', $1), setval('pqrun.jobs_place_seq', $1)", 2**31 - 1)
    job_id = await store.enqueue("t", {}, dedupe_key="k")
    assert job_id == 2**31
    assert await store.enqueue("t", {}, dedupe_key="k") == job_id
    assert await store.cancel(job_id) == "CANCELLED"
    await store.retry(job_id)
    link = store.open_link("claim", kept=True)
    worker = await make_worker(connection)
    claimer = Claimer(link, worker=worker, worker_id="w")
    (job,) = (await claimer.claim([(Lane("default", 0), 2**31)], ["t"], [], [], limit=1, look=1, free=1)).jobs
    assert [s.status for s in await settle(link, [Done(Claim(job.id, job.claim_id or 0), 1, None)])] == [Status.DONE]
    assert (await store.wait_end(job_id)).status is Status.DONE
    await link.close()


async def parts_of(connection: asyncpg.Connection) -> list[tuple[int, str]]:
    rows = await connection.fetch("SELECT id, tableoid::regclass::text AS part FROM pqrun.jobs ORDER BY id")
    return [(row["id"], row["part"]) for row in rows]


STEPS = ("enqueue", "later", "claim", "settle", "cancel", "retry", "promote", "sql", "delete")


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 11)), min_size=10, max_size=30))
def test_whatever_happens_an_id_lives_in_one_part_only(databases: Databases, steps: list[tuple[str, int]]) -> None:
    run(live(databases, steps))


async def live(databases: Databases, steps: list[tuple[str, int]]) -> None:
    dsn = await databases.clone()
    async with PgJobStore(dsn) as store, connected(dsn) as connection:
        link = store.open_link("claim", kept=True)
        claimer = Claimer(link, worker=await make_worker(connection), worker_id="w")
        claims: list[Claim] = []
        for step, number in steps:
            await take(step, number, store, connection, link, claimer, claims)
            found = await parts_of(connection)
            assert len({job_id for job_id, _ in found}) == len(found), (step, found)
        await link.close()
    await databases.drop(dsn)


async def take(
    step: str,
    number: int,
    store: PgJobStore,
    connection: asyncpg.Connection,
    link: Link,
    claimer: Claimer,
    claims: list[Claim],
) -> None:
    job_id = number + 1
    match step:
        case "enqueue":
            await store.enqueue("t", {}, dedupe_key=f"k{number % 4}")
        case "later":
            await store.enqueue("t", {}, run_after=datetime(2999, 1, 1, tzinfo=UTC))
        case "claim":
            batch = await claimer.claim([(Lane("default", 0), 0)], ["t"], ["t"], [], limit=number, look=20, free=20)
            claims += [Claim(job.id, job.claim_id or 0) for job in batch.jobs]
        case "settle":
            await settle(link, [outcome_of(claim, number + index) for index, claim in enumerate(claims)])
        case "cancel":
            await store.cancel(job_id)
        case "retry":
            try:
                await store.retry(job_id, force=number % 2 == 0)
            except PqrunError:
                return  # refused: then nothing moved
        case "promote":
            await connection.execute(
                "UPDATE pqrun.jobs SET run_after = now() WHERE status = 'SCHEDULED' AND id = $1", job_id
            )
            await claimer.promote(None)
        case "sql":
            await connection.execute(
                "UPDATE pqrun.jobs SET status = 'FAILED', finished_at = now() WHERE status = 'READY' AND id = $1",
                job_id,
            )
        case _:
            await connection.execute("DELETE FROM pqrun.jobs WHERE id = $1", job_id)


def outcome_of(claim: Claim, number: int) -> Outcome:
    outcomes: list[Outcome] = [
        Done(claim, 1, None),
        Failed(claim, 1, "x"),
        Retrying(claim, 1, "x", 0.0),
        Released(claim, started=True, counted=False),
        Recovered(claim, "x"),
    ]
    return outcomes[number % len(outcomes)]


@pytest.mark.parametrize("run_after", ["4000-01-01 BC", "20000-01-01"])
async def test_sql_cannot_enqueue_for_a_time_that_the_driver_cannot_read(
    connection: asyncpg.Connection, run_after: str
) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match="run_after"):
        await connection.execute(f"SELECT pqrun.enqueue('t', '{{}}', run_after => '{run_after}')")
    with pytest.raises(asyncpg.CheckViolationError, match="jobs_active_values"):
        await connection.execute(f"INSERT INTO pqrun.jobs (job_type, run_after) VALUES ('t', '{run_after}')")
