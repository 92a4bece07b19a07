"""Lists of jobs: columns, orders and named queries, all of them in the URL."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from pqrun import Status
from pqrun.job.listing import JobLine
from pqrun.job.query import parse_query
from pqrun.store import PgJobStore
from pqrun.store.listing import browse, orders
from tests.support.rows import make_job
from tests.web.conftest import Pages
from tests.web.serving import Browser
from tests.web.shop import HOSTILE


def rows(text: str) -> list[int]:
    return [int(one) for one in re.findall(r'<tr id="job-(\d+)"', text)]


async def test_columns_are_chosen_in_the_url_and_stay_while_one_looks_around(pages: Pages, ann: Browser) -> None:
    path = "/jobs?q=state:failed&col=priority&col=key&col=nonsense&col=ended"
    text = await ann.get(path)
    heads = re.findall(r'<th scope="col"[^>]*>([^<]+)</th>', text)
    assert heads == ["Job", "Priority", "Ended", "Dedupe key"]
    assert "&lt;script&gt;" in text  # the key of the hostile job
    links = re.findall(r'href="/ops/jobs\?([^"]+)"[^>]*>([^<]+)', text.partition("<table")[0])
    assert [words for link, words in links if "col=priority&amp;col=key" not in link] == ["As ever"]
    assert heads != re.findall(r'<th scope="col"[^>]*>([^<]+)</th>', await ann.get("/jobs?col=nonsense"))
    await ann.get(f"/jobs?col={HOSTILE}".replace("&", "%26").replace("#", ""))


async def test_columns_and_order_survive_an_action(pages: Pages, ann: Browser) -> None:
    fields = {"do": "retry", "scope": "chosen", "id": [pages.ids["FAILED"]], "q": "state:failed", "sort": "ended"}
    answer = await ann.post("/jobs", {**fields, "col": ["state", "key"]}, token_of="/jobs")
    assert "sort=ended&col=state&col=key&did=" in answer.headers["location"]


async def make_ended(pages: Pages, minutes: int) -> int:
    at = datetime.now(UTC) - timedelta(minutes=minutes)
    return await make_job(pages.connection, status=Status.FAILED, job_type="add", finished_at=at)


async def test_jobs_are_sorted_where_an_index_leads_and_paged_by_keys(pages: Pages, ann: Browser) -> None:
    by_end = {await make_ended(pages, minutes): minutes for minutes in (30, 10, 50, 20, 40)}
    seen: list[int] = []
    path = "/jobs?q=state:failed+task:add&sort=ended&show=2"
    while path:
        text = await ann.get(path)
        seen += rows(text)
        following = re.search(r'rel="next" href="/ops([^"]+)"', text)
        path = following[1].replace("&amp;", "&") if following else ""
    assert seen == sorted(by_end, key=by_end.__getitem__)
    waiting = [await make_job(pages.connection, job_type="add") for _ in range(3)]
    oldest = rows(await ann.get("/jobs?q=state:ready+task:add&sort=oldest&show=2"))
    assert oldest == waiting[:2]
    text = await ann.get(f"/jobs?q=state:ready+task:add&sort=oldest&show=2&before={waiting[1]}")
    assert rows(text) == waiting[2:]
    assert rows(await ann.get("/jobs?q=state:ready+task:add")) == waiting[::-1]


async def test_an_order_without_an_index_is_not_offered_and_not_pretended(pages: Pages, ann: Browser) -> None:
    text = await ann.get("/jobs?q=task:send_email&sort=ended")
    assert "Not sorted as asked" in text
    assert rows(text) == sorted(rows(text), reverse=True)
    assert len(rows(text)) == len(Status)  # it hides nothing that the buttons below would reach
    assert "Sorted:" not in text
    assert orders(parse_query("state:failed since:1h")) == ("ended",)
    assert orders(parse_query("state:failed")) == ("newest", "ended")
    assert orders(parse_query("state:running")) == ("newest", "oldest")
    assert orders(parse_query("id:1,2")) == orders(parse_query("")) == ("newest",)


async def test_named_queries_are_links_and_the_one_that_is_shown_says_so(pages: Pages, ann: Browser) -> None:
    text = await ann.get("/jobs")
    named = dict(re.findall(r'<li><a href="/ops/jobs(\?[^"]+)?"[^>]*>([^<]+)</a>', text.partition("<form")[0]))
    assert set(named.values()) >= {"Failed last hour", "Retrying", "Waiting longest", "Running longest"}
    for href, name in named.items():
        shown = await ann.get("/jobs" + href.replace("&amp;", "&"))
        assert re.findall(r'aria-current="true">([^<]+)<', shown) == [name]
    old = await make_ended(pages, 90)
    lately = await ann.get("/jobs?q=state:failed+since:1h")
    assert pages.ids["FAILED"] in rows(lately)
    assert old not in rows(lately)


async def test_a_page_behind_a_job_that_is_gone_says_to_begin_anew(pages: Pages, ann: Browser) -> None:
    text = await ann.get("/jobs?q=state:failed&sort=ended&before=987654")
    assert "begin anew" in text


@pytest.mark.parametrize(
    "query", ["", "state:failed", "state:ready,scheduled", "finished_after:1h", "queue:mail", "task:a*"]
)
async def test_a_page_finds_what_the_command_line_finds(pages: Pages, store: PgJobStore, query: str) -> None:
    """One decision, in one place: the same statement serves both."""
    for minutes in (5, 3, 90):
        await make_ended(pages, minutes)
    wanted = parse_query(query)
    listing = await store.list_jobs(wanted, limit=1000)
    async with store.connection() as lent:
        page = await browse(store.session(lent), wanted, shown=1000)
        few = await browse(store.session(lent), wanted, shown=1, rows=4)
    assert names(page.jobs) == names(listing.jobs)
    assert (page.matched, page.is_cut, page.following) == (len(listing.jobs), False, None)
    assert names(few.jobs) == names(listing.jobs)[:1] or few.is_cut


def names(lines: "list[JobLine] | tuple[JobLine, ...]") -> list[int]:
    return [line.id for line in lines]
