"""Queues and tasks on their pages: what waits and runs, what workers counted, pauses, and purges of exactly what was counted."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest

from pqrun import Status
from pqrun.web.periods import PERIODS
from pqrun.web.volumes import gathered
from tests.support.rows import make_job, make_worker
from tests.support.waiting import wait_until
from tests.web.conftest import Pages
from tests.web.serving import Browser
from tests.web.shop import HOSTILE, add_statistics

HERE = f"/queues/{quote(HOSTILE, safe='')}"


def flat(text: str) -> str:
    """Without tags, and with single spaces."""
    return " ".join(re.sub("<[^>]*>", " ", text).split())


async def count(pages: Pages, **what: Any) -> None:
    await add_statistics(pages.jobs.store, pages.ids["worker"], **what)


async def log(pages: Pages) -> list[tuple[Any, ...]]:
    rows = await pages.connection.fetch("SELECT actor, action, target, outcome FROM pqrun.audit ORDER BY id")
    return [tuple(row) for row in rows]


async def twin(ann: Browser, path: str) -> Mapping[str, Any]:
    answer = await ann.client.get(f"/ops/api{path}")
    assert answer.status_code == 200, answer.text
    found: Mapping[str, Any] = answer.json()
    return found


async def test_the_list_has_what_is_now_and_what_workers_counted(pages: Pages, ann: Browser) -> None:
    await pages.connection.execute("UPDATE pqrun.workers SET concurrency = 5, slots = '{\"mail\": 2}'")
    await make_job(pages.connection, status=Status.SCHEDULED, attempts=2, queue="mail", job_type="send_email")
    await count(pages, done=9, failed=1)
    rows = {row["name"]: row for row in (await twin(ann, "/queues.json"))["queues"]}
    mail = rows["mail"]["now"]
    assert (mail["ready"], mail["scheduled"], mail["running"], mail["failing"]) == (1, 2, 1, 1)
    assert (mail["workers"], mail["slots"]) == (1, 2)
    volume = rows["mail"]["volume"]
    assert (volume["arrived"], volume["done"], volume["failed"]) == (10, 9, 1)
    assert sum(step["ended"] for step in volume["steps"]) == 10
    page = await ann.get("/queues")
    assert "10 in, 10 out" in page
    assert rows[HOSTILE]["now"]["reason"] == HOSTILE


async def test_counts_that_stop_at_their_bound_say_so(
    pages: Pages, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pqrun.store.queues.COUNT_ROWS", 3)
    await pages.connection.execute(
        "INSERT INTO pqrun.jobs (job_type, payload, queue) SELECT 'add', '{}', 'mail' FROM generate_series(1, 9)"
    )
    for path in ("/", "/queues", "/queues/mail"):
        assert "3+" in flat(await ann.get(path)), path


async def test_many_queues_are_paged_and_the_overview_shows_those_that_matter(pages: Pages, ann: Browser) -> None:
    await pages.connection.execute(
        "INSERT INTO pqrun.jobs (job_type, payload, queue) SELECT 'add', '{}', 'q' || n FROM generate_series(1, 150) n"
    )
    await pages.jobs.pause(queue="q140")
    seen: list[str] = []
    path = "/queues?range=15m"
    while path:
        text = await ann.get(path)
        seen += re.findall(r'class="open" href="/ops/queues/([^"]+)"', text)
        following = re.search(r'rel="next" href="/ops([^"]+)"', text)
        path = unescape(following[1]) if following else ""
        assert "range=15m" in path or not path
    assert len(seen) == len(set(seen)) == 150 + 3
    overview = await twin(ann, "/overview.json")
    names = [row["name"] for row in overview["queues"]]
    assert (len(names), overview["all_queues"]) == (20, 153)
    assert {HOSTILE, "q140"} <= set(names)
    assert names == sorted(names)
    assert "20 of 153 queues" in flat(await ann.get("/"))


async def test_a_queue_that_nothing_is_in_any_more_is_still_shown_with_what_went_through(
    pages: Pages, ann: Browser
) -> None:
    await count(pages, queue="gone by", done=3)
    assert "/ops/queues/gone%20by" in await ann.get("/")
    assert "3 in, 3 out" in await ann.get("/queues")
    assert "<strong>3</strong>" in await ann.get("/queues/gone%20by")
    assert "no worker serves it" in await ann.get("/queues/never", status=404)


async def test_a_queue_shows_ages_running_jobs_and_who_serves_it(pages: Pages, ann: Browser) -> None:
    await pages.connection.execute("UPDATE pqrun.workers SET concurrency = 5, slots = '{\"default\": 2}'")
    await make_worker(pages.connection, "for others")
    await pages.connection.execute("UPDATE pqrun.workers SET queues = '{other}' WHERE worker_id = 'for others'")
    past = datetime.now(UTC) - timedelta(minutes=2)
    await make_job(pages.connection, queue="mail", run_after=past)
    found = await twin(ann, "/queues/mail.json")
    assert dict(zip(found["ages"]["labels"], found["ages"]["counts"], strict=True))["to 5 min"] == 1
    assert [one["id"] for one in found["running"]] == [pages.ids["RUNNING"]]
    (one,) = found["serving"]
    assert (one["slots"], one["is_own"]) == (3, False)
    page = await ann.get("/queues/mail")
    assert f'href="/ops/jobs/{pages.ids["RUNNING"]}"' in page
    assert "for others" not in page


async def test_a_queue_is_paused_with_a_reason_and_resumed(pages: Pages, ann: Browser) -> None:
    await ann.post("/queues/mail", {"do": "pause", "reason": "no SMTP"}, token_of="/queues/mail")
    (pause,) = [one for one in await pages.jobs.paused() if one.name == "mail"]
    assert (pause.kind, pause.reason) == ("queue", "no SMTP")
    assert "no SMTP" in await ann.get("/queues/mail")
    assert "no SMTP" in await ann.get("/")
    again = await ann.post("/queues/mail", {"do": "pause", "back": "list"}, token_of="/queues")
    assert again.headers["location"] == "/ops/queues"
    back = await ann.post("/queues/mail", {"do": "resume", "back": "overview"}, token_of="/")
    assert back.headers["location"] == "/ops/"
    assert [one.name for one in await pages.jobs.paused()] == [HOSTILE]
    await ann.post("/queues/mail", {"do": "resume"}, token_of="/queues")
    assert await log(pages) == [
        ("ann", "pause", "queue mail", "paused: no SMTP"),
        ("ann", "pause", "queue mail", "was paused already"),
        ("ann", "resume", "queue mail", "resumed"),
        ("ann", "resume", "queue mail", "was not paused"),
    ]


async def test_a_reason_that_cannot_be_stored_is_told_at_its_field(pages: Pages, ann: Browser) -> None:
    for path in ("/queues/mail", "/tasks/add"):
        answer = await ann.post(path, {"do": "pause", "reason": "x" * 1001}, token_of="/queues", status=422)
        assert 'aria-describedby="reason-problem"' in answer.text
        assert "x" * 1001 in answer.text
    assert [one.name for one in await pages.jobs.paused()] == [HOSTILE]
    assert await log(pages) == []


async def test_a_task_is_paused_in_all_queues_by_an_operator(pages: Pages) -> None:
    async with pages.browser(role="operator", user="bob") as bob:
        await bob.post("/tasks/add", {"do": "pause", "reason": "a bug"}, token_of="/tasks/add")
        assert ("task", "add", "a bug") in [(one.kind, one.name, one.reason) for one in await pages.jobs.paused()]
        for path in ("/tasks", "/tasks/add", "/queues"):
            assert "a bug" in await bob.get(path), path
        await bob.post("/tasks/add", {"do": "resume", "back": "list"}, token_of="/tasks")
        assert "a bug" not in await bob.get("/tasks")
    assert [entry[:3] for entry in await log(pages)] == [
        ("bob", "pause", "task add"),
        ("bob", "resume", "task add"),
    ]


async def test_a_pause_that_a_hanging_claim_is_in_the_way_of_is_given_up_and_not_noted(
    pages: Pages, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pqrun.store.queues.PAUSE_TRIES", 2)
    monkeypatch.setattr("pqrun.store.acting.PAUSE_SETTINGS", "SET lock_timeout = 20")
    async with pages.connection.transaction():
        await pages.connection.execute("SELECT pg_advisory_xact_lock_shared(hashtext('pqrun'), -1)")
        answer = await ann.post("/queues/mail", {"do": "pause"}, token_of="/queues", status=503)
        assert "does not end; try again" in answer.text
    assert await log(pages) == []
    await ann.post("/queues/mail", {"do": "pause"}, token_of="/queues")
    assert len(await log(pages)) == 1


@pytest.mark.parametrize(("how", "left"), [("cancel", {"CANCELLED"}), ("delete", set())])
async def test_a_purge_counts_first_and_then_does_exactly_that(
    pages: Pages, ann: Browser, how: str, left: set[str]
) -> None:
    waiting = [await make_job(pages.connection, queue=HOSTILE) for _ in range(3)]
    waiting.append(await make_job(pages.connection, queue=HOSTILE, status=Status.SCHEDULED))
    elsewhere = await make_job(pages.connection, queue="mail")
    form = {"do": "purge", "how": how, "name": HOSTILE}
    answer = await ann.post(HERE, form, token_of=HERE)
    page = answer.headers["location"].removeprefix("/ops")
    assert "4 jobs. Nothing has been done yet" in flat(await ann.get(page))
    later = await make_job(pages.connection, queue=HOSTILE)
    await ann.post(page, {"do": "start", "matched": "4"}, token_of=page)

    async def is_over() -> bool:
        return "4 of 4 done" in flat(await ann.get(page))

    await wait_until(is_over)
    rows = await pages.connection.fetch("SELECT id, status FROM pqrun.jobs")
    status = {row["id"]: row["status"] for row in rows}
    assert {status[one] for one in waiting if one in status} == left
    assert (status[later], status[elsewhere]) == ("READY", "READY")
    prepared, ended = await log(pages)
    assert prepared[:2] == ended[:2] == ("ann", "purge")
    assert ended[3] == "done: 4 done, 0 refused"
    kept = "SELECT count(*) FROM pqrun.jobs WHERE queue = $1 AND status = 'FAILED'"
    assert await pages.connection.fetchval(kept, HOSTILE) == 1


async def test_a_purge_needs_the_name_and_the_rights(pages: Pages, ann: Browser) -> None:
    form = {"do": "purge", "how": "delete", "name": "mail"}
    wrong = await ann.post("/queues/mail", form | {"name": "Mail"}, token_of="/queues", status=422)
    assert 'aria-describedby="purge-problem"' in wrong.text
    await ann.post("/queues/mail", form | {"how": "burn"}, token_of="/queues", status=400)
    await ann.post("/queues/mail", {"do": "drain"}, token_of="/queues", status=400)
    async with pages.browser(role="operator", user="bob") as bob:
        assert "Count the jobs to purge" not in await bob.get("/queues/mail")
        await bob.post("/queues/mail", form, token_of="/queues", status=403)
    assert await pages.connection.fetchval("SELECT count(*) FROM pqrun.operations") == 0


async def test_an_operator_cannot_start_the_purge_of_an_admin(pages: Pages, ann: Browser) -> None:
    answer = await ann.post("/queues/mail", {"do": "purge", "how": "cancel", "name": "mail"}, token_of="/queues")
    page = answer.headers["location"].removeprefix("/ops")
    async with pages.browser(role="operator", user="bob") as bob:
        await bob.post(page, {"do": "start", "matched": "2"}, token_of="/queues", status=403)


async def test_a_task_shows_what_workers_counted_of_it(pages: Pages, ann: Browser) -> None:
    await count(pages, done=3, failed=1)
    await count(pages, queue="other", done=96)
    page = flat(await ann.get("/tasks/send_email"))
    assert "success 99 %" in page
    assert "p99 100 ms" in page
    rows = {row["name"]: row for row in (await twin(ann, "/tasks.json"))["tasks"]}
    assert rows["send_email"]["volume"]["done"] == 99
    assert rows["add"]["volume"]["done"] == 0


async def test_statistics_that_take_too_long_leave_the_rest_of_the_page(
    pages: Pages, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pqrun.store.pages.PAGE_SETTINGS", "SET statement_timeout = 600")
    monkeypatch.setitem(pages.jobs.store.statements._texts, "read_statistics", SLOW)
    for path in ("/", "/queues", "/queues/mail", "/tasks", "/tasks/send_email"):
        assert "Choose a shorter time" in await ann.get(path), path


SLOW = (
    "SELECT pg_sleep(20) WHERE $1::timestamptz < $2::timestamptz AND $3::float8 > 0 AND $4::text <> '' "
    "AND ($5::text IS NULL OR true) AND ($6::text IS NULL OR true)"
)


async def test_the_overview_tells_how_the_parts_are(pages: Pages, ann: Browser) -> None:
    health = {one["name"]: one["is_well"] for one in (await twin(ann, "/overview.json"))["health"]}
    assert health == dict.fromkeys(("workers", "reaper", "scheduler", "clock of this host", "schema", "database"), True)
    await pages.connection.execute("UPDATE pqrun.workers SET beat_at = now() - interval '2 minutes'")
    await pages.connection.execute("UPDATE pqrun.schedules SET next_at = now() - interval '5 minutes'")
    await pages.connection.execute("DELETE FROM pqrun.migrations WHERE version = 9")
    health = {one["name"]: one["is_well"] for one in (await twin(ann, "/overview.json"))["health"]}
    assert {name for name, is_well in health.items() if not is_well} == {"workers", "reaper", "scheduler", "schema"}
    page = await ann.get("/")
    assert "not cleared away" in page
    assert "1 migration missing" in page


async def test_jobs_that_a_real_worker_has_run_are_in_the_charts(pages: Pages, ann: Browser) -> None:
    await pages.connection.execute("DELETE FROM pqrun.jobs")
    async with pages.jobs.worker(concurrency=2).lifespan():
        for number in range(5):
            handle = await pages.jobs.tasks["add"].defer(a=number)
            await handle.result(timeout=20)

    async def is_written() -> bool:
        rows = {row["name"]: row for row in (await twin(ann, "/tasks.json"))["tasks"]}
        return bool(rows["add"]["volume"]["done"] == 5)

    await wait_until(is_written)
    assert "5 in, 5 out" in await ann.get("/queues")


@pytest.mark.parametrize("period", PERIODS.values(), ids=str)
def test_steps_begin_at_round_times_and_the_last_is_that_of_now(period: Any) -> None:
    now = datetime(2026, 3, 29, 1, 2, 3, 4, tzinfo=UTC)
    times = period.times(now)
    assert len(times) == period.steps
    assert times[-1] <= now < times[-1] + period.step
    assert all((at - datetime(2026, 3, 29, tzinfo=UTC)) % period.step == timedelta(0) for at in times)


def test_steps_in_which_nothing_happened_are_there() -> None:
    volume = gathered((), PERIODS["15m"].times(datetime(2026, 1, 1, tzinfo=UTC)))
    assert [step.wait_p50 for step in volume.steps] == [None] * 15
    assert volume.success is None
