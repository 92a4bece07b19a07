"""The page of one job: what stands around it, and who sees it."""

import json
import re
from html import unescape
from typing import Any

from pqrun import Status
from pqrun.web import create_app
from tests.support.rows import make_job
from tests.web.conftest import Pages
from tests.web.serving import Browser, by_header, served
from tests.web.shop import HOSTILE

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


async def make_child(pages: Pages, **columns: Any) -> int:
    headers = json.dumps({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "tenant": HOSTILE})
    return await make_job(pages.connection, job_type="add", payload='{"a": 1}', **{"headers": headers, **columns})


async def test_headers_and_the_trace_are_shown_to_who_sees_payloads(pages: Pages) -> None:
    job_id = await make_child(pages)
    app = create_app(pages.jobs, authorize=by_header, hide_payloads=True)
    async with served(app) as url, Browser(url) as admin, Browser(url, role="viewer") as viewer:
        page = await admin.get(f"/jobs/{job_id}")
        assert f"<dt>Trace</dt><dd><code>{TRACE}</code>" in page
        assert "<dt>tenant</dt><dd><code>&lt;script&gt;" in page
        for path in (f"/jobs/{job_id}", f"/api/jobs/{job_id}.json"):
            hidden = await viewer.get(path)
            assert TRACE not in hidden
            assert "tenant" not in hidden


async def test_a_header_that_is_no_trace_is_not_taken_for_one(pages: Pages, ann: Browser) -> None:
    job_id = await make_child(pages, headers='{"traceparent": "00-<b>-x-01"}')
    assert "<dt>Trace</dt>" not in await ann.get(f"/jobs/{job_id}")


async def test_other_jobs_with_the_key_are_shown_and_the_key_is_a_secret(pages: Pages, ann: Browser) -> None:
    ended = [await make_child(pages, status=Status.FAILED, dedupe_key="k", last_error="E: no") for _ in range(22)]
    await make_child(pages, dedupe_key="other")
    await make_job(pages.connection, job_type="another", dedupe_key="k")
    job_id = await make_child(pages, dedupe_key="k")
    text = await ann.get(f"/jobs/{job_id}")
    part = text.partition("Jobs with the same dedupe key")[2].partition("</table>")[0]
    shown = [int(one) for one in re.findall(r'class="open" href="/ops/jobs/(\d+)"', part)]
    assert shown == ended[:1:-1]
    app = create_app(pages.jobs, authorize=by_header, hide_payloads=True)
    async with served(app) as url, Browser(url, role="viewer") as viewer:
        assert "same dedupe key" not in await viewer.get(f"/jobs/{job_id}")


async def test_a_job_of_a_schedule_leads_to_it(pages: Pages, ann: Browser) -> None:
    job_id = await pages.jobs.schedules.run("nightly")
    link = '<a href="/ops/schedules/nightly">nightly</a>'
    assert f"<dt>Schedule</dt><dd>{link}" in await ann.get(f"/jobs/{job_id}")
    await pages.jobs.schedules.add("daily", pages.jobs.tasks["add"].call(a=1), cron="0 1 * * *")
    assert f"<dt>Schedule</dt><dd>{link}</dd>" in await ann.get(f"/jobs/{job_id}")
    await pages.jobs.schedules.run("nightly")
    text = await ann.get(f"/jobs/{job_id}")
    assert f'<dt>Schedules of its task</dt><dd><a href="/ops/schedules/daily">daily</a>, {link}</dd>' in text


async def test_a_running_job_tells_of_its_worker_and_what_a_cancel_does_without_it(pages: Pages, ann: Browser) -> None:
    page = f"/jobs/{pages.ids['RUNNING']}"
    text = await ann.get(page)
    assert f'href="/ops/workers/{pages.ids["worker"]}"' in text
    assert "last sign of life" in text
    assert "There is nothing to release by hand" not in text
    await pages.connection.execute("UPDATE pqrun.workers SET beat_at = now() - interval '1 minute'")
    assert "gives no sign of life for 1 min" in await ann.get(page)
    assert "There is nothing to release by hand" in await ann.get(page)
    await pages.connection.execute("DELETE FROM pqrun.workers")
    assert "Its worker is not registered" in " ".join((await ann.get(page)).split())


async def test_what_is_copied_as_sql_makes_the_same_job(pages: Pages, ann: Browser) -> None:
    payload = json.dumps({"a": 1, "text": 'it\'s \\ "quoted" <b>'})
    job_id = await make_job(
        pages.connection, job_type="o'add", queue="it's", payload=payload, priority=3, timeout_seconds=1.5
    )
    text = await ann.get(f"/jobs/{job_id}")
    statements = [unescape(one) for one in re.findall(r"<pre[^>]*>(select [^<]+)</pre>", text)]
    assert await pages.connection.fetchval(statements[0]) == job_id
    new = await pages.connection.fetchval(statements[1])
    query = "SELECT job_type, queue, payload, priority, max_attempts, timeout_seconds FROM pqrun.jobs WHERE id = $1"
    assert await pages.connection.fetchrow(query, new) == await pages.connection.fetchrow(query, job_id)
    (curl,) = re.findall(r"<pre[^>]*>(curl [^<]+)</pre>", text)
    assert (await ann.client.get(curl.split()[-1])).json()["id"] == job_id
    assert f"pqrun cancel {job_id}" in text


async def test_what_is_hidden_or_masked_is_not_copied_as_sql(pages: Pages) -> None:
    job_id = await make_job(pages.connection, job_type="add", payload='{"card": "4111"}')
    masked = create_app(pages.jobs, authorize=by_header, redact=lambda _task, _part, value: {"card": "****"})
    hidden = create_app(pages.jobs, authorize=by_header, hide_payloads=True)
    async with served(masked) as url, Browser(url) as admin:
        assert "4111" not in await admin.get(f"/jobs/{job_id}")
    async with served(hidden) as url, Browser(url, role="viewer") as viewer:
        text = await viewer.get(f"/jobs/{job_id}")
        assert "4111" not in text
        assert "select * from pqrun.jobs" in text
