"""Workers on their pages: how each is, what it is told, where its handlers are; and what stands out of a task among what ended last."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import pytest

from pqrun import App, JobContext, Status
from pqrun.store.link import Session
from pqrun.web import create_app
from pqrun.web.views import workers as view
from pqrun.workers import Workers
from tests.support.rows import make_job, make_worker
from tests.support.waiting import wait_until
from tests.web.conftest import Pages
from tests.web.serving import Browser, by_header, served
from tests.web.shop import HOSTILE

SECRET = "no-one-may-read-this"


def flat(text: str) -> str:
    """Without tags, and with single spaces."""
    return " ".join(re.sub("<[^>]*>", " ", text).split())


def page_of(pages: Pages) -> str:
    return f"/workers/{pages.ids['worker']}"


async def log(pages: Pages) -> list[tuple[Any, ...]]:
    rows = await pages.connection.fetch("SELECT actor, action, target, outcome FROM pqrun.audit ORDER BY id")
    return [tuple(row) for row in rows]


async def wanted(pages: Pages) -> Mapping[str, Any]:
    (one,) = [one for one in await pages.jobs.workers.list() if one.id == pages.ids["worker"]]
    return one.wanted


async def test_an_operator_lets_a_worker_claim_nothing_and_claim_again(pages: Pages) -> None:
    name = f"worker {pages.ids['worker']} (w {HOSTILE})"
    async with pages.browser(role="operator", user="bob") as bob:
        assert "Stop claiming" in await bob.get(page_of(pages))
        answer = await bob.post(page_of(pages), {"do": "pause", "back": "list"}, token_of="/workers")
        assert answer.headers["location"] == "/ops/workers"
        assert (await wanted(pages))["fetching"] is False
        assert "has not followed yet" in await bob.get(page_of(pages))
        await pages.connection.execute("UPDATE pqrun.workers SET fetching = false")
        page = flat(await bob.get(page_of(pages)))
        assert "Claims jobs no" in page
        assert "‖ paused" in page
        answer = await bob.post(page_of(pages), {"do": "resume"}, token_of=page_of(pages))
        assert answer.headers["location"] == "/ops" + page_of(pages)
        assert (await wanted(pages))["fetching"] is True
        assert "claims nothing" in await bob.get("/workers")
    assert await log(pages) == [
        ("bob", "pause", name, "told to claim nothing"),
        ("bob", "resume", name, "told to claim again"),
    ]


async def test_a_drain_is_asked_once_more_and_needs_an_admin(pages: Pages, ann: Browser) -> None:
    async with pages.browser(role="operator", user="bob") as bob:
        assert "Drain" not in await bob.get(page_of(pages))
        await bob.post(page_of(pages), {"do": "drain", "sure": "yes"}, token_of="/workers", status=403)
    for fields in ({}, {"sure": ""}, {"sure": "no"}):
        unsure = await ann.post(page_of(pages), {"do": "drain", **fields}, token_of=page_of(pages), status=422)
        assert 'aria-describedby="drain-problem"' in unsure.text
    assert await wanted(pages) == {}
    assert await log(pages) == []
    answer = await ann.post(page_of(pages), {"do": "drain", "sure": "yes"}, token_of=page_of(pages))
    assert answer.headers["location"] == "/ops/workers"
    assert (await wanted(pages))["drain"] is True
    assert "draining" in await ann.get("/workers")
    assert 'class="one"' not in await ann.get("/workers")  # nothing more can be told to it
    page = await ann.get(page_of(pages))
    assert "Told to end" in page
    assert "Drain this worker" not in page
    assert [(entry[1], entry[3]) for entry in await log(pages)] == [("drain", "told to end")]


async def test_who_has_ended_is_told_nothing_and_the_refusal_is_noted(pages: Pages, ann: Browser) -> None:
    await pages.connection.execute("UPDATE pqrun.workers SET dead_at = now()")
    page = await ann.get(page_of(pages))
    assert "It ended, or was taken for dead" in page
    assert "Stop claiming" not in page
    for fields in ({"do": "pause"}, {"do": "drain", "sure": "yes"}, {"do": "stacks"}):
        answer = await ann.post(page_of(pages), fields, token_of="/queues", status=422)
        assert "taken for dead" in answer.text
    assert all(outcome.startswith("refused: ") for _, _, _, outcome in await log(pages))
    assert len(await log(pages)) == 3
    await ann.post("/workers/987654", {"do": "pause"}, token_of="/queues", status=404)
    await ann.post(page_of(pages), {"do": "burn"}, token_of="/queues", status=400)


async def test_each_action_on_workers_can_be_kept_from_everybody(pages: Pages) -> None:
    app = create_app(pages.jobs, authorize=by_header, allow_actions=["pause"])
    async with served(app) as url, Browser(url) as admin:
        page = await admin.get(page_of(pages))
        assert "Stop claiming" in page
        assert "Show stacks" not in page
        assert "Drain" not in page
        for fields in ({"do": "resume"}, {"do": "drain", "sure": "yes"}, {"do": "stacks"}):
            await admin.post(page_of(pages), fields, token_of="/queues", status=403)


async def test_a_worker_shows_where_its_handlers_are_and_no_values(dsn: str) -> None:
    jobs = App(dsn=dsn)
    started, gate = asyncio.Event(), asyncio.Event()

    @jobs.task
    async def hold(ctx: JobContext, token: str) -> None:
        started.set()
        await gate.wait()

    worker = jobs.worker(worker_id="web-1", environ={})
    app = create_app(jobs, authorize=by_header, hide_payloads=True)
    async with jobs, worker.lifespan(), served(app) as url:
        await hold.defer(token=SECRET)
        await started.wait()
        (one,) = await jobs.workers.list()
        path = f"/workers/{one.id}"
        async with Browser(url, role="operator", user="bob") as bob, Browser(url, role="viewer") as viewer:
            assert "Stacks of running jobs" not in await viewer.get(path)
            answer = await bob.post(path, {"do": "stacks"}, token_of=path)
            shown = await bob.get(answer.headers["location"])
            seen = await viewer.get(path)
            twin = (await viewer.client.get(f"/api{path}.json")).json()
            audit = await bob.get("/operations")
        gate.set()
    for text in (shown, seen):
        assert "await gate.wait()" in text
        assert "has not answered" not in text
        assert SECRET not in text
        assert re.search(r"As they were <time datetime=", text)
    assert "await gate.wait()" in twin["stacks"]["text"]
    assert "asked where its handlers are" in audit


async def test_a_worker_that_does_not_answer_is_not_waited_for_without_end(
    pages: Pages, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "STACKS_SECONDS", 0.0)
    await pages.connection.execute("UPDATE pqrun.workers SET stacks = 'an old answer', stacks_at = clock_timestamp()")
    answer = await ann.post(page_of(pages), {"do": "stacks"}, token_of=page_of(pages))
    asked = answer.headers["location"].removeprefix("/ops")
    page = await ann.get(asked)
    assert "has not answered yet" in page
    assert "an old answer" in page
    await pages.connection.execute("UPDATE pqrun.workers SET stacks = $1, stacks_at = clock_timestamp()", HOSTILE)
    page = await ann.get(asked)
    assert "has not answered yet" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    for nonsense in ("x", "2026-01-01", "2026-01-01T00:00:00", HOSTILE):
        assert "has not answered yet" not in await ann.get(f"{page_of(pages)}?asked={nonsense}")


async def test_silent_workers_and_older_versions_are_flagged(pages: Pages, ann: Browser) -> None:
    assert "no sign of life" not in await ann.get("/workers")
    await make_worker(pages.connection, "new one")
    await pages.connection.execute("UPDATE pqrun.workers SET version = '0.1.0', concurrency = 7")
    await pages.connection.execute(
        "UPDATE pqrun.workers SET version = $1 WHERE worker_id = 'new one'", f"1.0+{HOSTILE}"
    )
    listing, page = await ann.get("/workers"), await ann.get(page_of(pages))
    assert flat(listing).count("! older") == 1
    assert "0.1.0" in listing
    assert "older pqrun than others" in page
    assert "Running / slots 1 / 7" in flat(page)
    assert "<script>alert" not in listing + page
    await pages.connection.execute("UPDATE pqrun.workers SET beat_at = now() - interval '5 minutes'")
    listing = flat(await ann.get("/workers"))
    assert "no sign of life for 5 min; it holds 1 job." in listing
    assert "0 alive, 2 not" in listing
    assert "No sign of life for 5 min" in await ann.get(page_of(pages))


async def test_a_real_worker_follows_its_page(pages: Pages, ann: Browser) -> None:
    await pages.connection.execute("DELETE FROM pqrun.jobs")
    worker = pages.jobs.worker(worker_id="real", environ={})
    async with worker.lifespan():
        (one,) = [one for one in await pages.jobs.workers.list() if one.worker_id == "real"]
        path = f"/workers/{one.id}"

        async def is_paused() -> bool:
            return "Claims jobs no" in flat(await ann.get(path))

        await ann.post(path, {"do": "pause"}, token_of=path)
        await wait_until(is_paused)
        await ann.post(path, {"do": "drain", "sure": "yes"}, token_of=path)
        await wait_until(lambda: worker.vitals.state == "off")
        page = await ann.get(path)
        assert "It ended, or was taken for dead" in page
        assert "Told to end" not in page
    assert await Workers(pages.jobs.store).stacks("real") == []


async def add_ended(pages: Pages, count: int, **what: Any) -> list[int]:
    return [await make_job(pages.connection, **what) for _ in range(count)]


async def test_a_task_shows_its_slowest_jobs_of_late(pages: Pages, ann: Browser) -> None:
    ended = await add_ended(pages, 12, job_type="add", status=Status.DONE)
    await pages.connection.execute(
        "UPDATE pqrun.jobs SET duration_ms = 1000 * id WHERE job_type = 'add' AND id <> $1", ended[-1]
    )
    await pages.connection.execute(
        "UPDATE pqrun.jobs SET duration_ms = 10 ^ 9 WHERE job_type <> 'add' AND status = 'DONE'"
    )
    await pages.connection.execute("UPDATE pqrun.jobs SET duration_ms = NULL WHERE id = $1", ended[-1])
    found = (await ann.client.get("/ops/api/tasks/add.json")).json()
    assert [job["id"] for job in found["slowest"]] == ended[-2::-1][:10]
    assert not found["ended"]["is_cut"]
    page = await ann.get("/tasks/add")
    assert "among all jobs that have ended (" in page
    assert f'href="/ops/jobs/{ended[1]}"' in page[page.index("slowest-h") :]


async def test_the_slowest_are_those_of_the_jobs_that_were_looked_at_and_the_page_says_which(
    pages: Pages, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pqrun.store.task_pages.ENDED_LOOKED", 4)
    (long_ago,) = await add_ended(pages, 1, job_type="add", status=Status.DONE)
    await pages.connection.execute(
        "UPDATE pqrun.jobs SET duration_ms = 10 ^ 9, finished_at = now() - interval '1 day' WHERE id = $1", long_ago
    )
    late = await add_ended(pages, 3, job_type="add", status=Status.FAILED, last_error=f"ValueError: {HOSTILE}")
    await pages.connection.execute(
        "UPDATE pqrun.jobs SET duration_ms = 5, finished_at = now() + id * interval '1 s' WHERE id = ANY ($1)", late
    )
    found = (await ann.client.get("/ops/api/tasks/add.json")).json()
    assert {job["id"] for job in found["slowest"]} == set(late)
    assert [job["id"] for job in found["failed"]] == late[::-1]
    assert (found["ended"]["looked"], found["ended"]["is_cut"]) == (4, True)
    page = await ann.get("/tasks/add")
    assert "among the 4 jobs of all tasks that ended last (since" in flat(page)
    assert "<script>alert" not in page
    assert "No job of this task that was run is among the 4" in flat(await ann.get("/tasks/send_email"))


async def test_the_pages_of_workers_and_tasks_ask_a_bounded_number_of_questions(
    pages: Pages, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_ended(pages, 3, job_type="add", status=Status.FAILED, duration_ms=7)
    await pages.connection.execute("UPDATE pqrun.workers SET stacks = 'here', stacks_at = now()")
    asked: list[str] = []
    real = Session.run

    async def counted(self: Session, name: str, *arguments: object, timeout: float | None = None) -> Any:
        asked.append(name)
        return await real(self, name, *arguments, timeout=timeout)

    monkeypatch.setattr(Session, "run", counted)
    for path, most in (("/workers", 1), (page_of(pages), 3), ("/tasks/add", 8)):
        asked.clear()
        await ann.get(path)
        assert len(asked) <= most, asked
