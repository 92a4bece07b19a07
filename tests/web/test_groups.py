"""Groups of errors as a whole, and operations again: frozen first, looked at again, and nothing beyond what was shown."""

import re

import pytest

from pqrun import Status
from pqrun.store import attempts
from tests.support.rows import make_job
from tests.web.conftest import Pages
from tests.web.serving import Browser
from tests.web.shop import add_attempt

BOTH = pytest.mark.parametrize("action", ["retry", "delete"])


async def failed(pages: Pages, *texts: str) -> int:
    """A job whose attempts failed with these texts, the last one last."""
    job_id = await make_job(pages.connection, status=Status.FAILED, job_type="add")
    for text in texts:
        await add_attempt(pages.connection, job_id, text, "add")
    return job_id


async def fingerprint(pages: Pages, text: str) -> str:
    return str(await pages.connection.fetchval("SELECT md5($1)", text))


async def left(pages: Pages) -> set[int]:
    rows = await pages.connection.fetch("SELECT id FROM pqrun.jobs WHERE job_type = 'add' AND status = 'FAILED'")
    return {row["id"] for row in rows}


async def prepared(pages: Pages, ann: Browser, action: str, text: str) -> str:
    fields = {"do": action, "fingerprint": await fingerprint(pages, text), "task": "add"}
    answer = await ann.post("/errors", fields, token_of="/errors")
    return answer.headers["location"].removeprefix("/ops")


@BOTH
async def test_a_group_is_the_failed_jobs_whose_newest_attempt_is_of_it(
    pages: Pages, ann: Browser, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "GROUP_ROWS", 2)
    mine = {await failed(pages, "gone"), await failed(pages, "other", "gone"), await failed(pages, "gone", "gone")}
    others = {await failed(pages, "gone", "other"), await failed(pages, "other")}
    waiting = await make_job(pages.connection, status=Status.SCHEDULED, job_type="add", attempts=1)
    await add_attempt(pages.connection, waiting, "gone", "add")
    page = await prepared(pages, ann, action, "gone")
    text = await ann.get(page)
    assert "<strong>3</strong> jobs. Nothing has been done yet" in text
    assert "group of errors" in text
    assert await left(pages) == mine | others
    await ann.post(page, {"do": "start", "matched": "3"}, token_of=page)
    assert await left(pages) == others
    gone = await pages.connection.fetchval("SELECT count(*) FROM pqrun.jobs WHERE id = ANY ($1)", list(mine))
    assert gone == (3 if action == "retry" else 0)


@BOTH
async def test_what_left_the_group_after_the_count_is_left_alone(pages: Pages, ann: Browser, action: str) -> None:
    stays, done, other = [await failed(pages, "gone") for _ in range(3)]
    page = await prepared(pages, ann, action, "gone")
    await pages.connection.execute(
        "UPDATE pqrun.jobs SET status = 'DONE', duration_ms = 1, result = '{}', last_error = NULL, locked_at = now(), "
        "locked_by = 'w' WHERE id = $1",
        done,
    )
    await add_attempt(pages.connection, other, "another error", "add")
    await ann.post(page, {"do": "start", "matched": "3"}, token_of=page)
    text = " ".join((await ann.get(page)).split())
    assert "<strong>1</strong> of 3 done; 2 left alone" in text
    assert await left(pages) == {other}
    assert await pages.connection.fetchval("SELECT status FROM pqrun.jobs WHERE id = $1", done) == "DONE"
    del stays


async def test_what_is_no_group_and_who_may_not_is_refused(pages: Pages, ann: Browser) -> None:
    await ann.post("/errors", {"do": "retry", "task": "add"}, token_of="/errors", status=400)
    await ann.post("/errors", {"do": "cancel", "fingerprint": "x", "task": "add"}, token_of="/errors", status=400)
    await ann.post("/errors", {"do": "retry", "fingerprint": "x", "task": ""}, token_of="/errors", status=422)
    async with pages.browser(role="operator") as operator:
        assert "Delete all" not in await operator.get("/errors")
        fields = {"do": "delete", "fingerprint": "x", "task": "add"}
        await operator.post("/errors", fields, token_of="/errors", status=403)
    async with pages.browser(role="viewer") as viewer:
        assert 'method="post"' not in await viewer.get("/errors")


async def test_groups_show_their_last_day(pages: Pages, ann: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = await failed(pages, *["gone"] * 5)
    for number, hours in enumerate((0, 0, 0, 5, 30), start=1):
        await pages.connection.execute(
            "UPDATE pqrun.attempts SET ended_at = now() - $2 * interval '1 hour' - interval '1 second' "
            "WHERE id = (SELECT id FROM pqrun.attempts WHERE job_id = $1 ORDER BY id DESC LIMIT 1 OFFSET $3 - 1)",
            job_id,
            hours,
            number,
        )
    assert "4, 3 in one hour at most" in await ann.get("/errors")
    monkeypatch.setattr(attempts, "HOUR_ROWS", 4)
    twin = (await ann.client.get("/ops/api/errors.json")).json()
    (row,) = [one for one in twin["groups"] if one["group"]["job_type"] == "add"]
    assert row["hours"] == [None] * 18 + [1, 0, 0, 0, 0, 3]


async def test_an_operation_that_is_over_is_counted_again_as_a_new_one(pages: Pages, ann: Browser) -> None:
    first = {await failed(pages, "gone") for _ in range(2)}
    answer = await ann.post("/jobs", {"do": "delete", "scope": "all", "q": "task:add state:failed"}, token_of="/jobs")
    page = answer.headers["location"].removeprefix("/ops")
    await ann.post(page, {"do": "repeat"}, token_of=page, status=409)  # not over
    await ann.post(page, {"do": "start", "matched": "2"}, token_of=page)
    assert await left(pages) == set()
    second = {await failed(pages, "gone") for _ in range(3)}
    again = (await ann.post(page, {"do": "repeat"}, token_of=page)).headers["location"].removeprefix("/ops")
    assert again != page
    assert "<strong>3</strong> jobs. Nothing has been done yet" in await ann.get(again)
    assert await left(pages) == second
    await ann.post(again, {"do": "start", "matched": "3"}, token_of=again)
    assert await left(pages) == set()
    assert first.isdisjoint(second)


async def test_a_group_is_counted_again_as_a_group_and_ticked_jobs_are_not(pages: Pages, ann: Browser) -> None:
    await failed(pages, "gone")
    page = await prepared(pages, ann, "retry", "gone")
    await ann.post(page, {"do": "stop"}, token_of=page)
    await failed(pages, "other")
    again = (await ann.post(page, {"do": "repeat"}, token_of=page)).headers["location"].removeprefix("/ops")
    assert "<strong>1</strong> job. Nothing" in await ann.get(again)
    job_id = await failed(pages, "gone")
    ticked = await ann.post("/jobs", {"do": "retry", "scope": "chosen", "id": [job_id]}, token_of="/jobs")
    found = re.search(r"did=(\d+)", ticked.headers["location"])
    assert found is not None
    assert "Count these again" not in await ann.get(f"/operations/{found[1]}")
    await ann.post(f"/operations/{found[1]}", {"do": "repeat"}, token_of="/jobs", status=409)
