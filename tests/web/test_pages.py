"""Every page shows what there is, in bounded work, and shows hostile text as text."""

import re
import sys
from typing import cast
from urllib.parse import quote

import asyncpg
import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from pqrun import App
from pqrun.store.link import Session
from pqrun.store.listing import browse
from pqrun.web import create_app
from tests.web.conftest import Pages
from tests.web.serving import Browser, by_header, served
from tests.web.shop import HOSTILE

PATHS = (
    *(
        "/",
        "/jobs",
        "/jobs?q=state:failed",
        "/jobs?q=nonsense:1",
        "/errors",
        "/errors?task=add",
        "/tasks",
        "/tasks/send_email",
        "/tasks/add",
        "/schedules",
    ),
    *("/schedules/nightly", "/workers", "/operations", "/system", "/help"),
    *("/?range=7d", "/queues", "/queues?range=15m", "/queues/mail", "/queues/default?range=24h", "/tasks?range=6h"),
)
QUERIES_MOST = 8


def paths(pages: Pages) -> list[str]:
    return [
        *PATHS,
        *(f"/jobs/{job_id}" for name, job_id in pages.ids.items() if name != "worker"),
        f"/queues/{quote(HOSTILE, safe='')}",
        f"/workers/{pages.ids['worker']}",
    ]


async def test_every_page_is_whole_without_scripts_and_every_link_leads_somewhere(pages: Pages, ann: Browser) -> None:
    seen: set[str] = set()
    for path in paths(pages):
        text = await ann.get(path)
        assert len(re.findall("<h1", text)) == 1, path
        assert text.count("<main") == 1
        for href in re.findall(r'href="(/[^"#]*)', text):
            assert href.startswith("/ops/"), f"{path}: {href} leads out of where the pages are mounted"
            seen.add(href.replace("&amp;", "&"))
    for href in sorted(seen):
        answer = await ann.client.get(href)
        is_gone = answer.status_code == 404 and "/tasks/" in href
        assert answer.status_code == 200 or is_gone, href


async def test_no_hostile_text_becomes_markup(pages: Pages, ann: Browser) -> None:
    shown = 0
    for path in [
        *paths(pages),
        f"/jobs?q={httpx.QueryParams(q=HOSTILE)['q']}",
        "/tasks/" + httpx.URL(path=HOSTILE).path,
    ]:
        answer = await ann.client.get("/ops" + path)
        assert "<script>alert" not in answer.text, path
        assert "49" not in re.findall(r"alert\(1\)[^<]{0,40}", answer.text), path
        shown += answer.text.count("&lt;script&gt;alert(1)&lt;/script&gt;")
    assert shown > 10


async def test_the_task_with_the_hostile_name_has_a_page(pages: Pages, ann: Browser) -> None:
    text = await ann.get("/tasks")
    (href,) = set(re.findall(r'href="/ops(/tasks/%3Cscript[^"]*)"', text))
    assert "&lt;script&gt;" in await ann.get(href)


async def test_each_page_asks_the_database_a_bounded_number_of_questions(
    pages: Pages, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = Session.run

    async def counted(
        self: Session, name: str, *arguments: object, timeout: float | None = None
    ) -> list[asyncpg.Record]:
        asked.append(name)
        return await real(self, name, *arguments, timeout=timeout)

    monkeypatch.setattr(Session, "run", counted)
    for path in paths(pages):
        asked.clear()
        await ann.get(path)
        assert len(asked) <= QUERIES_MOST, (path, asked)


async def test_the_json_twins_say_the_same(pages: Pages, ann: Browser) -> None:
    for path in [*PATHS, f"/jobs/{pages.ids['DONE']}", f"/workers/{pages.ids['worker']}"]:
        bare, _, query = path.partition("?")
        twin = "/overview" if bare == "/" else bare
        answer = await ann.client.get(f"/ops/api{twin}.json", params=httpx.QueryParams(query))
        assert answer.status_code == 200, (path, answer.text)
        assert isinstance(answer.json(), dict)
    job = (await ann.client.get(f"/ops/api/jobs/{pages.ids['DONE']}.json")).json()
    assert (job["status"], job["payload"], job["result"]) == ("DONE", {"user_id": 1}, {"ok": True})
    assert (await ann.client.get("/ops/api/jobs/999999999.json")).status_code == 404


async def test_a_list_says_how_far_it_has_looked_and_pages_by_keys(pages: Pages, ann: Browser) -> None:
    await pages.connection.execute(
        "INSERT INTO pqrun.jobs (job_type, payload) SELECT 'add', '{}' FROM generate_series(1, 120)"
    )
    seen: list[str] = []
    path = "/jobs?q=task:add&show=50"
    while path:
        text = await ann.get(path)
        seen += re.findall(r'<tr id="job-(\d+)"', text)
        following = re.search(r'rel="next" href="/ops([^"]+)"', text)
        path = following[1].replace("&amp;", "&") if following else ""
    assert len(seen) == len(set(seen)) == 120
    assert [int(one) for one in seen] == sorted(map(int, seen), reverse=True)
    assert "<strong>120</strong>" in await ann.get("/jobs?q=task:add")


async def test_a_search_that_ends_before_the_last_job_says_so(
    pages: Pages, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cast("dict[str, object]", browse.__kwdefaults__), "rows", 3)
    text = await ann.get("/jobs?q=state:scheduled,done")
    assert "None of the 3 newest jobs matches" in text
    assert "Search further back" in text


async def test_what_takes_too_long_is_a_page_that_says_what_to_narrow(
    pages: Pages, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = "SET statement_timeout = 1; SET lock_timeout = 1000"
    monkeypatch.setattr("pqrun.store.pages.PAGE_SETTINGS", settings)
    statement = "SELECT pg_sleep(1), NULL::timestamptz AS now, NULL::bigint AS last_id"
    monkeypatch.setitem(pages.jobs.store.statements._texts, "begin_selection", statement)
    text = await ann.get("/jobs", status=503)
    assert "That takes too long" in text
    assert "since:1h" in text


async def test_times_can_be_asked_for_again_without_scripts(ann: Browser) -> None:
    assert '<meta http-equiv="refresh" content="10">' in await ann.get("/jobs?refresh=10")
    assert 'http-equiv="refresh"' not in await ann.get("/jobs?refresh=abc")


async def test_a_store_alone_shows_the_same_without_tasks(dsn: str, pages: Pages) -> None:
    async with served(create_app(pages.jobs.store.another(), authorize=by_header)) as url, Browser(url) as browser:
        assert "know a database and no code" in await browser.get("/tasks")
        assert str(pages.ids["FAILED"]) in await browser.get("/jobs")
        assert (await browser.client.get("/readyz")).text == "ok\n"


async def test_pages_that_nobody_has_opened_a_store_for_open_one_and_leave_the_app_closed(dsn: str) -> None:
    jobs = App(dsn=dsn)
    pages = create_app(jobs, authorize=by_header)
    async with served(Starlette(routes=[Mount("/ops", pages)])) as url, Browser(url, "/ops") as browser:
        await browser.get("/jobs")
        assert not jobs.store.is_open
        # A mounted application hears of no end; its own lifespan closes what it has opened.
        async with pages.router.lifespan_context(pages):
            pass


async def test_health_is_told_to_anybody_and_says_no_more(empty_dsn: str, pages: Pages) -> None:
    async with pages.browser(role="nobody") as nobody:
        assert await nobody.get("/livez") == "ok\n"
        assert await nobody.get("/readyz") == "ok\n"
    async with served(create_app(App(dsn=empty_dsn), authorize=by_header)) as url, Browser(url) as browser:
        assert await browser.get("/readyz", status=503) == "not ready: SchemaError\n"
        assert "pqrun migrate" in await browser.get("/jobs", status=503)


async def test_exports_are_streamed_and_say_when_they_are_cut(pages: Pages, ann: Browser) -> None:
    answer = await ann.client.get("/ops/jobs.ndjson", params={"q": "task:send_email"})
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert len(answer.text.splitlines()) == 6
    cut = (await ann.client.get("/ops/jobs.ndjson", params={"limit": 2})).text.splitlines()
    assert len(cut) == 3
    assert "cut at 2" in cut[-1]
    await pages.connection.execute("INSERT INTO pqrun.jobs (job_type, payload) VALUES ('=1+1', '{}')")
    table = (await ann.client.get("/ops/jobs.csv")).text
    assert ",'=1+1," in table
    assert table.splitlines()[0].startswith("id,job_type,queue,status")


async def test_an_open_page_hears_that_something_was_written(
    pages: Pages, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pqrun.web.live.WATCH_SECONDS", 0.05)
    async with ann.client.stream("GET", "/ops/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.aiter_lines()
        async for line in lines:
            if line == "event: hello":
                break
        number = 0
        async for line in lines:
            if line == "event: changed":
                break
            number += 1
            await pages.jobs.tasks["add"].defer(a=number)


async def test_a_stream_ends_by_itself_and_the_next_one_tells_what_was_missed(
    pages: Pages, ann: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pqrun.web.live.WATCH_SECONDS", 0.05)
    monkeypatch.setattr("pqrun.web.live.STREAM_SECONDS", 0.2)
    first = (await ann.client.get("/ops/events")).text
    assert "event: hello" in first
    (heard,) = set(re.findall(r"^id: (.+)$", first, re.MULTILINE)[-1:])
    again = await ann.client.get("/ops/events", headers={"last-event-id": "of-another-process"})
    assert "event: changed" in again.text
    assert heard.partition("-")[0] == re.findall(r"^id: (.+)$", again.text, re.MULTILINE)[0].partition("-")[0]


async def test_a_job_shows_its_attempts_and_errors_are_groups_that_lead_to_them(pages: Pages, ann: Browser) -> None:
    page = await ann.get(f"/jobs/{pages.ids['FAILED']}")
    assert "attempt 1: error" in page
    assert "<summary>library code</summary>" in page
    errors = await ann.get("/errors")
    assert "no such card" in errors
    (query,) = set(
        re.findall(
            r'href="/ops(/jobs\?q=state%3Afailed[^"]*)"', errors.partition("no such card")[2].partition("</tr>")[0]
        )
    )
    assert "send_email" in query
    twin = (await ann.client.get("/ops/api/errors.json")).json()
    assert {row["group"]["job_type"] for row in twin["groups"]} == {"send_email"}
    assert "Latest errors" in await ann.get("/")


async def test_a_database_that_is_away_is_a_page_that_says_so() -> None:
    jobs = App(dsn="postgresql://nobody:s3cret@127.0.0.1:1/none")
    async with served(create_app(jobs, authorize=by_header)) as url, Browser(url) as browser:
        text = await browser.get("/jobs", status=503)
        assert "The database cannot be reached" in text
        assert "s3cret" not in text
        assert await browser.get("/readyz", status=503) == "not ready: DatabaseUnavailableError\n"
        assert (await browser.client.get("/api/jobs.json")).json()["error"] == "The database cannot be reached"


async def test_a_running_job_shows_how_far_it_has_come(pages: Pages, ann: Browser) -> None:
    text = await ann.get(f"/jobs/{pages.ids['RUNNING']}")
    assert 'value="0.25"' in text
    assert "<strong>25 %</strong>" in text


async def test_the_metrics_of_the_process_are_for_those_who_may_see_the_pages(pages: Pages, ann: Browser) -> None:
    answer = await ann.client.get("/ops/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "python_info{" in answer.text
    async with pages.browser(role="nobody") as nobody:
        assert "python_info" not in await nobody.get("/metrics", status=403)


async def test_without_the_package_for_metrics_there_is_no_such_page(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [one for one in sys.modules if one.startswith("pqrun.contrib.prometheus")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    async with served(create_app(pages.jobs, authorize=by_header)) as url, Browser(url) as browser:
        assert "There is no such page" in await browser.get("/metrics", status=404)
