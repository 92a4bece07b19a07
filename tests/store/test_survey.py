"""survey.sql and find_unserved.sql: what waits, by lanes."""

import asyncpg

from pqrun.job.serving import Serving
from pqrun.job.state import Status
from pqrun.store.claiming import Claimer, Lane
from pqrun.store.link import KeptLink, Session
from pqrun.store.maintaining import find_unserved
from pqrun.store.registry import deregister, register
from tests.support.rows import make_job


async def test_a_survey_lists_each_lane_with_ready_jobs_once(connection: asyncpg.Connection, claimer: Claimer) -> None:
    for queue, priority in [("b", 0), ("a", 5), ("a", -5), ("a", 5), ("", 0), ("b", 32767), ("b", -32768)]:
        await make_job(connection, queue=queue or "default", priority=priority)
    await make_job(connection, queue="later", status=Status.SCHEDULED)
    await make_job(connection, queue="busy", status=Status.RUNNING)
    await make_job(connection, queue="ended", status=Status.DONE)
    survey = await claimer.survey(None)
    expected = {Lane("a", 5), Lane("a", -5), Lane("b", 0), Lane("b", 32767), Lane("b", -32768), Lane("default", 0)}
    assert len(survey.lanes) == 6
    assert (set(survey.lanes), survey.has_suspect) == (expected, False)


async def test_a_survey_of_some_queues_lists_only_those(connection: asyncpg.Connection, claimer: Claimer) -> None:
    for queue in ("a", "b", "c"):
        await make_job(connection, queue=queue)
    assert set((await claimer.survey(["a", "c", "none"])).lanes) == {Lane("a", 0), Lane("c", 0)}
    assert (await claimer.survey([])).lanes == []


async def test_suspects_are_told_apart_and_no_lane(connection: asyncpg.Connection, claimer: Claimer) -> None:
    await make_job(connection, queue="a", lost=1)
    await make_job(connection, queue="a", lost=1, priority=3)
    survey = await claimer.survey(None)
    assert (survey.lanes, survey.has_suspect) == ([], True)
    assert not (await claimer.survey(["b"])).has_suspect
    assert (await claimer.survey(["a"])).has_suspect


async def test_nothing_waits_in_an_empty_table(claimer: Claimer) -> None:
    survey = await claimer.survey(None)
    assert (survey.lanes, survey.has_suspect) == ([], False)


async def test_what_no_living_worker_serves_is_named_once(
    connection: asyncpg.Connection, session: Session, link: KeptLink
) -> None:
    for queue, job_type in [("default", "t"), ("default", "gone"), ("default", "gone"), ("other", "t")]:
        await make_job(connection, queue=queue, job_type=job_type)
    await make_job(connection, job_type="later", status=Status.SCHEDULED)
    assert set(await find_unserved(link)) == {("default", "t"), ("default", "gone"), ("other", "t")}
    await register(session, "one", "h", 1, serving=Serving(("default",), 1), job_types=["t"])
    assert set(await find_unserved(link)) == {("default", "gone"), ("other", "t")}
    two = await register(session, "two", "h", 2, job_types=["t"])
    assert await find_unserved(link) == [("default", "gone")]
    three = await register(session, "three", "h", 3, job_types=["gone"])
    assert await find_unserved(link) == []
    await deregister(session, two)
    await deregister(session, three)
    assert set(await find_unserved(link)) == {("default", "gone"), ("other", "t")}
