"""Every form does what it says, once, and leaves its line in the audit log."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from pqrun import Status
from pqrun.web import operating
from tests.support.rows import make_job
from tests.support.waiting import wait_until
from tests.web.conftest import Pages
from tests.web.serving import Browser


async def status_of(pages: Pages, job_id: int) -> str | None:
    found = await pages.connection.fetchval("SELECT status FROM pqrun.jobs WHERE id = $1", job_id)
    return None if found is None else str(found)


async def log(pages: Pages) -> list[tuple[str, str, str]]:
    rows = await pages.connection.fetch("SELECT actor, action, outcome FROM pqrun.audit ORDER BY id")
    return [(row["actor"], row["action"], row["outcome"]) for row in rows]


async def test_a_failed_job_is_retried(pages: Pages, ann: Browser) -> None:
    job_id = pages.ids["FAILED"]
    await ann.post(f"/jobs/{job_id}", {"do": "retry"}, token_of=f"/jobs/{job_id}")
    assert await status_of(pages, job_id) == "READY"
    assert await log(pages) == [("ann", "retry", "ready again")]
    assert "retry by ann" in await ann.get(f"/jobs/{job_id}")


async def test_a_refusal_is_told_and_noted_and_changes_nothing(pages: Pages, ann: Browser) -> None:
    job_id = pages.ids["READY"]
    answer = await ann.post(f"/jobs/{job_id}", {"do": "retry"}, token_of="/jobs", status=409)
    assert "it is READY" in answer.text
    (entry,) = await log(pages)
    assert entry[2].startswith("refused: ")
    assert await status_of(pages, job_id) == "READY"


async def test_a_waiting_job_is_cancelled_and_a_running_one_is_asked_to_stop(pages: Pages, ann: Browser) -> None:
    for name in ("READY", "RUNNING"):
        await ann.post(f"/jobs/{pages.ids[name]}", {"do": "cancel"}, token_of="/jobs")
    assert await status_of(pages, pages.ids["READY"]) == "CANCELLED"
    assert await status_of(pages, pages.ids["RUNNING"]) == "RUNNING"
    asked = "SELECT cancel_requested_at IS NOT NULL FROM pqrun.jobs WHERE id = $1"
    assert await pages.connection.fetchval(asked, pages.ids["RUNNING"])
    assert [entry[2] for entry in await log(pages)] == ["cancelled", "its worker is asked to stop it"]


async def test_a_job_is_run_now_and_put_off(pages: Pages, ann: Browser) -> None:
    job_id = pages.ids["SCHEDULED"]
    await ann.post(f"/jobs/{job_id}", {"do": "run_at", "when": "now"}, token_of="/jobs")
    assert await status_of(pages, job_id) == "READY"
    await ann.post(f"/jobs/{job_id}", {"do": "run_at", "when": "2h"}, token_of="/jobs")
    assert await status_of(pages, job_id) == "SCHEDULED"
    due = await pages.connection.fetchval("SELECT run_after FROM pqrun.jobs WHERE id = $1", job_id)
    assert timedelta(hours=1) < due - datetime.now(UTC) < timedelta(hours=3)
    await ann.post(f"/jobs/{job_id}", {"do": "run_at", "when": "soon"}, token_of="/jobs", status=422)


async def test_queue_and_priority_are_changed(pages: Pages, ann: Browser) -> None:
    job_id = pages.ids["READY"]
    await ann.post(f"/jobs/{job_id}", {"do": "move", "queue": "other"}, token_of="/jobs")
    await ann.post(f"/jobs/{job_id}", {"do": "prioritize", "priority": "-7"}, token_of="/jobs")
    row = await pages.connection.fetchrow("SELECT queue, priority FROM pqrun.jobs WHERE id = $1", job_id)
    assert row is not None
    assert tuple(row) == ("other", -7)
    await ann.post(f"/jobs/{job_id}", {"do": "prioritize", "priority": "99999"}, token_of="/jobs", status=422)
    await ann.post(f"/jobs/{pages.ids['DONE']}", {"do": "move", "queue": "x"}, token_of="/jobs", status=422)


async def test_a_deleted_job_keeps_its_history(pages: Pages, ann: Browser) -> None:
    job_id = pages.ids["FAILED"]
    await ann.post(f"/jobs/{job_id}", {"do": "delete"}, token_of="/jobs")
    assert await status_of(pages, job_id) is None
    text = await ann.get(f"/jobs/{job_id}")
    assert "The job is gone" in text
    assert "deleted" in text
    await ann.post(f"/jobs/{pages.ids['RUNNING']}", {"do": "delete"}, token_of="/jobs", status=422)


async def test_a_copy_is_a_new_job_that_its_task_has_checked(pages: Pages, ann: Browser) -> None:
    job_id = pages.ids["FAILED"]
    refused = await ann.post(
        f"/jobs/{job_id}", {"do": "copy", "payload": '{"user_id": 0}'}, token_of="/jobs", status=422
    )
    assert "user_id" in refused.text
    assert "&#34;user_id&#34;: 0" in refused.text  # what was typed is still there
    answer = await ann.post(f"/jobs/{job_id}", {"do": "copy", "payload": '{"user_id": 5}'}, token_of="/jobs")
    new = int(answer.headers["location"].rpartition("/")[2].partition("?")[0])
    row = await pages.connection.fetchrow("SELECT queue, payload::text, status FROM pqrun.jobs WHERE id = $1", new)
    assert row is not None
    assert (row["queue"], '"user_id": 5' in row["payload"], row["status"]) == ("mail", True, "READY")
    assert f"job {job_id}" in await ann.get(f"/jobs/{new}")
    assert await status_of(pages, job_id) == "FAILED"


async def test_a_job_is_made_by_a_form_whose_errors_stand_at_their_fields(pages: Pages, ann: Browser) -> None:
    page = "/tasks/send_email"
    text = await ann.get(page)
    for field in ("user_id", "kind", "subject", "day", "urgent", "tags"):
        assert f'name="field.{field}"' in text
    wrong = {"field.user_id": "0", "field.kind": '"welcome"', "field.day": "31.1.2026"}
    refused = await ann.post(page, wrong, token_of=page, status=422)
    assert len(re.findall(r'id="f\d-problem"', refused.text)) == 2
    assert 'value="31.1.2026"' in refused.text
    right = {"field.user_id": "7", "field.subject": "1", "field.tags": '["a"]', "priority": "3", "when": "1h"}
    answer = await ann.post(page, right, token_of=page)
    new = int(answer.headers["location"].rpartition("/")[2].partition("?")[0])
    job = await pages.jobs.store.get(new)
    assert job is not None
    assert job.payload == {"user_id": 7, "kind": "welcome", "subject": "1", "day": None, "urgent": False, "tags": ["a"]}
    assert (job.priority, job.status, job.queue) == (3, Status.SCHEDULED, "mail")


async def test_hooks_before_defer_count_for_jobs_made_by_hand(pages: Pages, ann: Browser) -> None:
    pages.jobs.before_defer(lambda deferral: deferral.replace(queue="hooked"))
    await ann.post("/tasks/add", {"field.a": "1"}, token_of="/tasks/add")
    assert await pages.connection.fetchval("SELECT queue FROM pqrun.jobs ORDER BY id DESC LIMIT 1") == "hooked"


async def test_hooks_after_defer_hear_of_jobs_made_by_hand_once_they_are_there(pages: Pages, ann: Browser) -> None:
    heard: list[tuple[str, int, bool]] = []
    pages.jobs.after_defer(lambda deferral, handle: heard.append((deferral.job_type, handle.id, handle.created)))
    await ann.post("/tasks/add", {"field.a": "1"}, token_of="/tasks/add")
    job_id = pages.ids["FAILED"]
    for fields in ({"do": "copy", "payload": '{"user_id": 5}'}, {"do": "clone"}):
        await ann.post(f"/jobs/{job_id}", fields, token_of="/jobs")
    rows = await pages.connection.fetch("SELECT job_type, id FROM pqrun.jobs ORDER BY id DESC LIMIT 3")
    assert heard == [(row["job_type"], row["id"], True) for row in reversed(rows)]


async def test_a_clone_has_the_same_payload_and_shows_it_to_nobody(pages: Pages, ann: Browser) -> None:
    job_id = pages.ids["DONE"]
    answer = await ann.post(f"/jobs/{job_id}", {"do": "clone"}, token_of="/jobs")
    new = int(answer.headers["location"].rpartition("/")[2].partition("?")[0])
    query = "SELECT payload, queue, job_type FROM pqrun.jobs WHERE id = $1"
    assert await pages.connection.fetchrow(query, new) == await pages.connection.fetchrow(query, job_id)
    await pages.connection.execute("UPDATE pqrun.jobs SET payload = '{\"user_id\": 0}' WHERE id = $1", job_id)
    refused = await ann.post(f"/jobs/{job_id}", {"do": "clone"}, token_of="/jobs", status=422)
    assert "user_id" in refused.text
    assert "<textarea" not in refused.text


async def test_the_next_firing_that_the_page_showed_is_skipped_and_no_other(pages: Pages, ann: Browser) -> None:
    page = "/schedules/nightly"
    planned = (await pages.jobs.schedules.get("nightly")).next_at
    assert planned is not None
    await ann.post(page, {"do": "skip", "planned": planned.isoformat()}, token_of=page)
    after = (await pages.jobs.schedules.get("nightly")).next_at
    assert after is not None
    assert after > planned
    again = await ann.post(page, {"do": "skip", "planned": planned.isoformat()}, token_of=page, status=409)
    assert "its next time is" in again.text
    await ann.post(page, {"do": "skip", "planned": "tomorrow"}, token_of=page, status=400)
    assert (await pages.jobs.schedules.get("nightly")).next_at == after
    assert [entry[2].partition(" ")[0] for entry in await log(pages)] == ["skipped", "refused:"]


async def test_a_late_schedule_tells_how_many_times_it_missed_and_how_its_last_job_ended(
    pages: Pages, ann: Browser
) -> None:
    await pages.connection.execute(
        "UPDATE pqrun.schedules SET next_at = next_at - interval '3 days', last_at = now(), last_job_id = $1",
        pages.ids["FAILED"],
    )
    text = await ann.get("/schedules")
    assert "3 times missed" in text
    assert "is-failed" in text
    assert "3 planned times have passed" in " ".join((await ann.get("/schedules/nightly")).split())


async def test_retention_is_run_by_a_job_once_at_a_time(pages: Pages, ann: Browser) -> None:
    await ann.post("/system", {"do": "cleanup", "older": "soon"}, token_of="/jobs", status=422)
    await ann.post("/system", {"do": "cleanup", "older": "2d"}, token_of="/system")
    row = await pages.connection.fetchrow("SELECT payload::text, queue FROM pqrun.jobs WHERE job_type = '__cleanup'")
    assert row is not None
    assert tuple(row) == ('{"older_than_seconds": 172800.0}', "default")
    again = await ann.post("/system", {"do": "cleanup", "older": "2d"}, token_of="/system", status=422)
    assert "has its dedupe key" in again.text
    assert [entry[1] for entry in await log(pages)] == ["cleanup", "cleanup"]
    async with pages.browser(role="operator") as operator:
        assert "Run retention now" not in await operator.get("/system")
        await operator.post("/system", {"do": "cleanup", "older": "2d"}, token_of="/jobs", status=403)


async def test_schedules_are_paused_resumed_run_changed_and_removed(pages: Pages, ann: Browser) -> None:
    page = "/schedules/nightly"
    await ann.post(page, {"do": "pause"}, token_of=page)
    assert (await pages.jobs.schedules.get("nightly")).state == "paused"
    await ann.post(page, {"do": "resume"}, token_of=page)
    answer = await ann.post(page, {"do": "run"}, token_of=page)
    assert "/jobs/" in answer.headers["location"]
    form = {"cron": "0 4 * * *", "tz": "UTC", "every": "", "catch_up": "skip", "overlap": "skip", "jitter": "30s"}
    await ann.post(page, {"do": "edit", **form, "payload": '{"a": 9}'}, token_of=page)
    changed = await pages.jobs.schedules.get("nightly")
    assert (changed.cron, changed.tz, changed.catch_up, changed.overlap) == ("0 4 * * *", "UTC", "skip", "skip")
    assert changed.payload == {"a": 9, "b": 2}
    refused = await ann.post(page, {"do": "edit", **form, "cron": "every day"}, token_of=page, status=422)
    assert "every day" in refused.text
    await ann.post(page, {"do": "remove"}, token_of=page)
    assert await pages.jobs.schedules.list() == []
    assert [entry[1] for entry in await log(pages)] == ["pause", "resume", "run", "edit", "edit", "remove"]


async def test_ticked_jobs_are_retried_at_once_and_refusals_are_told(pages: Pages, ann: Browser) -> None:
    ids = [pages.ids[name] for name in ("FAILED", "CANCELLED", "RUNNING")]
    answer = await ann.post("/jobs", {"do": "retry", "scope": "chosen", "id": ids}, token_of="/jobs")
    text = await ann.get(answer.headers["location"].removeprefix("/ops"))
    assert "done to 2 of 3, 1 left alone (running 1)" in text
    assert await status_of(pages, pages.ids["FAILED"]) == "READY"
    assert (await log(pages))[-1] == ("ann", "retry", "done: 2 done, 1 refused")


async def test_nothing_ticked_does_nothing(pages: Pages, ann: Browser) -> None:
    await ann.post("/jobs", {"do": "retry", "scope": "chosen"}, token_of="/jobs", status=400)
    await ann.post("/jobs", {"do": "retry", "scope": "chosen", "id": "x"}, token_of="/jobs", status=400)
    await ann.post("/jobs", {"do": "explode", "id": "1"}, token_of="/jobs", status=400)


async def test_all_that_match_are_counted_first_and_then_exactly_those_are_done(pages: Pages, ann: Browser) -> None:
    add = "INSERT INTO pqrun.jobs (job_type, status, attempts, finished_at) SELECT 'add', 'FAILED', 1, now() FROM generate_series(1, 2500)"
    await pages.connection.execute(add)
    answer = await ann.post("/jobs", {"do": "retry", "scope": "all", "q": "task:add state:failed"}, token_of="/jobs")
    page = answer.headers["location"].removeprefix("/ops")
    text = await ann.get(page)
    assert "<strong>2,500</strong> jobs. Nothing has been done yet" in text
    count = "SELECT count(*) FROM pqrun.jobs WHERE job_type = 'add' AND status = 'READY'"
    assert await pages.connection.fetchval(count) == 0
    # What comes and what changes after the count is left alone.
    await pages.connection.execute(add.replace("2500", "10"))
    await pages.connection.execute(
        "DELETE FROM pqrun.jobs WHERE id IN (SELECT id FROM pqrun.jobs WHERE job_type = 'add' ORDER BY id LIMIT 5)"
    )
    await ann.post(page, {"do": "start", "matched": "2499"}, token_of=page, status=409)
    await ann.post(page, {"do": "start", "matched": "2500"}, token_of=page)

    async def is_over() -> bool:
        return "2,495</strong> of 2,500 done; 5 left alone" in " ".join((await ann.get(page)).split())

    await wait_until(is_over)
    assert await pages.connection.fetchval(count) == 2495
    assert (await log(pages))[-1] == ("ann", "retry", "done: 2,495 done, 5 refused")
    assert await pages.connection.fetchval("SELECT ids FROM pqrun.operations") is None


async def test_an_operation_is_discarded_or_stopped_between_two_pieces(
    pages: Pages, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await make_job(pages.connection, job_type="add", status=Status.FAILED)
    answer = await ann.post("/jobs", {"do": "delete", "scope": "all", "q": "task:add"}, token_of="/jobs")
    page = answer.headers["location"].removeprefix("/ops")
    number = int(page.rpartition("/")[2])
    await ann.post(page, {"do": "stop"}, token_of=page)
    assert await pages.connection.fetchval("SELECT state FROM pqrun.operations WHERE id = $1", number) == "STOPPED"
    assert await pages.connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE job_type = 'add'") == 3

    answer = await ann.post("/jobs", {"do": "delete", "scope": "all", "q": "task:add"}, token_of="/jobs")
    page = answer.headers["location"].removeprefix("/ops")
    number = int(page.rpartition("/")[2])
    monkeypatch.setattr(operating, "PIECE", 1)
    real = operating._Run._act

    async def act_and_be_stopped(self: operating._Run, ids: list[int]) -> object:
        report = await real(self, ids)
        await pages.connection.execute("UPDATE pqrun.operations SET stop_asked_at = now() WHERE id = $1", number)
        return report

    monkeypatch.setattr(operating._Run, "_act", act_and_be_stopped)
    await ann.post(page, {"do": "start", "matched": "3"}, token_of=page)
    row = await pages.connection.fetchrow("SELECT state, done, position FROM pqrun.operations WHERE id = $1", number)
    assert row is not None
    assert tuple(row) == ("STOPPED", 1, 1)
    assert await pages.connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE job_type = 'add'") == 2


async def test_an_operation_whose_process_has_ended_is_gone_on_with(pages: Pages, ann: Browser) -> None:
    ids = [await make_job(pages.connection, job_type="add", status=Status.FAILED) for _ in range(4)]
    number = await pages.connection.fetchval(
        "INSERT INTO pqrun.operations (actor, action, ids, matched, position, done, state, started_at, beat_at) "
        "VALUES ('bob', 'retry', $1, 4, 2, 2, 'RUNNING', now(), now() - interval '1 hour') RETURNING id",
        ids,
    )
    page = f"/operations/{number}"
    assert "gives no sign of life" in await ann.get(page)
    await ann.post(page, {"do": "start", "matched": "4"}, token_of=page)
    row = await pages.connection.fetchrow("SELECT state, done FROM pqrun.operations WHERE id = $1", number)
    assert row is not None
    assert tuple(row) == ("DONE", 4)
    assert [await status_of(pages, one) for one in ids] == ["FAILED", "FAILED", "READY", "READY"]
