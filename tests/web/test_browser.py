"""The pages in a real browser: scripts, keys, narrow windows, and what a screen reader meets (axe, in light and dark).

One browser serves all tests of a process, so they share its event loop; each has a database, pages and a profile of its own.
"""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser as Chromium
from playwright.async_api import Page, async_playwright, expect

from pqrun.web.rendering import JOB_COLUMNS
from tests.support.database import connected
from tests.support.leasing import Leases
from tests.support.rows import make_job
from tests.support.waiting import DEADLINE_SECONDS
from tests.web.conftest import Pages, opened
from tests.web.shop import HOSTILE, add_statistics, fill_more

AXE = Path(__file__).with_name("axe.min.js").read_text("utf-8")
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 800}

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

expect.set_options(timeout=DEADLINE_SECONDS * 1000)


@asynccontextmanager
async def chromium() -> AsyncIterator[Chromium]:
    program = os.environ.get("PQRUN_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:  # fails the run of CI, which installs it
        pytest.skip("no chromium: install Debian's, or name one in PQRUN_TEST_CHROMIUM")
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield started
        finally:
            await started.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Chromium]:
    """The browser of all these tests."""
    async with chromium() as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def pages(leases: Leases) -> AsyncIterator[Pages]:
    """The pages of the other tests, in the loop of the browser."""
    dsn = await leases.take()
    async with connected(dsn) as connection, opened(dsn, connection) as made:
        yield made
    left = await leases.give_back(dsn)
    assert left == [], "connections were left open"


@asynccontextmanager
async def tab(browser: Chromium, pages: Pages, *, role: str = "admin", **options: Any) -> AsyncIterator[Page]:
    """A page of somebody, which fails the test by any error of its scripts, broken policy, or request to another host."""
    options.setdefault("viewport", WIDE)
    context = await browser.new_context(base_url=pages.url, extra_http_headers={"x-test-role": role}, **options)
    faults: list[str] = []
    page = await context.new_page()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "console",
        lambda said: faults.append(said.text) if said.type == "error" and "status of 4" not in said.text else None,
    )
    page.on("request", lambda asked: None if asked.url.startswith(pages.url) else faults.append(f"asked {asked.url}"))
    try:
        yield page
        assert faults == []
    finally:
        await context.close()


ALL_COLUMNS = "".join(f"&col={name}" for name in JOB_COLUMNS)


def main_paths(ids: dict[str, int]) -> list[str]:
    return [
        *(
            "/ops/",
            "/ops/jobs",
            "/ops/jobs?q=state:failed task:send_*",
            "/ops/jobs?q=nonsense:1",
            "/ops/jobs?q=id:987654",
        ),
        *(
            f"/ops/jobs/{ids['FAILED']}",
            f"/ops/jobs/{ids['SCHEDULED']}",
            f"/ops/jobs/{ids['hostile']}",
            "/ops/jobs/987654",
        ),
        *(
            f"/ops/jobs?q=state:failed&sort=ended{ALL_COLUMNS}",
            f"/ops/jobs/{ids['child']}",
            f"/ops/operations/{ids['operation']}",
            "/ops/queues",
            "/ops/queues/mail",
            "/ops/errors",
            "/ops/tasks",
            "/ops/tasks/send_email",
            "/ops/schedules",
            "/ops/schedules/nightly",
            "/ops/workers",
        ),
        *(
            f"/ops/workers/{ids['worker']}",
            f"/ops/workers/{ids['worker']}?asked=2099-01-01T00:00:00Z",
            "/ops/operations",
            "/ops/system?examine=1",
            "/ops/help",
        ),
    ]


PARTS = 4
"""The pages are looked at in so many tests: a process takes two tests at first, and the other one finds work too."""


@pytest.mark.parametrize("part", range(PARTS))
async def test_no_page_breaks_a_rule_of_accessibility_or_is_wider_than_its_window(
    browser: Chromium, pages: Pages, part: int
) -> None:
    """Each page is loaded once: light and wide as it comes, then dark and narrow."""
    ids = {**pages.ids, **await fill_more(pages.connection)}
    for ago in (3, 4, 9, 20):  # so that the charts have something in them
        await add_statistics(pages.jobs.store, pages.ids["worker"], done=40 - ago, failed=ago, minutes_ago=ago)
    await pages.connection.execute(
        "UPDATE pqrun.workers SET stacks = $1, stacks_at = now(), version = '0.1', wanted = '{\"fetching\": false}'",
        f"1 running\n\njob 1 {'long_' * 60}\n  {HOSTILE}",
    )
    async with tab(browser, pages, color_scheme="light", bypass_csp=True, reduced_motion="reduce") as page:
        for path in main_paths(ids)[part::PARTS]:
            await page.emulate_media(color_scheme="light")
            await page.set_viewport_size(WIDE)  # type: ignore[arg-type]  # a TypedDict
            await page.goto(path)
            await page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            await page.evaluate(AXE)
            await assert_fits(page, path)
            await page.emulate_media(color_scheme="dark")
            await page.set_viewport_size(NARROW)  # type: ignore[arg-type]  # a TypedDict
            await assert_fits(page, f"{path}, dark and narrow")


async def assert_fits(page: Page, what: str) -> None:
    found = await page.evaluate("rules => axe.run(document, rules)", RULES)
    broken = [(one["id"], [node["html"][:160] for node in one["nodes"]][:3]) for one in found["violations"]]
    assert broken == [], what
    width = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width <= 0, f"{what} is {width} px too wide"
    assert await page.evaluate(TARGETS) == [], what


TARGETS = """() => Array.from(document.querySelectorAll("button, nav a, select, input:not([type=hidden], [type=checkbox], [type=radio])"))
  .filter((one) => one.checkVisibility())
  .map((one) => [one.outerHTML.slice(0, 80), one.getBoundingClientRect()])
  .filter(([, box]) => box.height < 43.5 || box.width < 24)
  .map(([text, box]) => text + " " + box.width + "x" + box.height)"""


async def test_a_job_is_retried_with_scripts_and_without(browser: Chromium, pages: Pages) -> None:
    for name, has_scripts in (("FAILED", True), ("CANCELLED", False)):
        async with tab(browser, pages, java_script_enabled=has_scripts) as page:
            await page.goto(f"/ops/jobs/{pages.ids[name]}")
            await page.get_by_role("button", name="Retry now").click()
            await expect(page.get_by_role("status").filter(has_text="Ready again")).to_be_visible()
            await expect(page.get_by_role("heading", level=1)).to_contain_text("ready")
            assert page.url.endswith("?done=retry")


async def test_a_queue_is_paused_with_a_reason_and_resumed_with_scripts_and_without(
    browser: Chromium, pages: Pages
) -> None:
    for has_scripts in (True, False):
        async with tab(browser, pages, java_script_enabled=has_scripts) as page:
            await page.goto("/ops/queues/mail")
            await page.get_by_label("Reason").fill("no SMTP <today>")
            await page.get_by_label("Reason").press("Enter")
            await expect(page.locator(".notice").filter(has_text="no SMTP <today>")).to_be_visible()
            await page.goto("/ops/")
            await page.get_by_role("button", name="Resume queue mail").click()
            await expect(page.get_by_role("button", name="Pause queue mail")).to_be_visible()
            assert page.url.endswith("/ops/")


async def test_a_queue_is_purged_by_its_name(browser: Chromium, pages: Pages) -> None:
    async with tab(browser, pages) as page:
        await page.goto("/ops/queues/mail")
        await page.get_by_text("Cancel or delete everything").click()
        await page.get_by_label("Type the name").fill("male")
        await page.get_by_role("button", name="Count the jobs to purge").click()
        await expect(page.get_by_label("Type the name")).to_have_attribute("aria-invalid", "true")
        await page.get_by_label("Type the name").fill("mail")
        await page.get_by_role("button", name="Count the jobs to purge").click()
        await page.get_by_role("button", name="Purge 2 jobs").click()
        await expect(page.get_by_text("2 of 2 done")).to_be_visible()


async def test_the_table_of_a_chart_opens_by_the_keyboard_and_stays_open(browser: Chromium, pages: Pages) -> None:
    await add_statistics(pages.jobs.store, pages.ids["worker"], done=1234)
    async with tab(browser, pages) as page:
        await page.goto("/ops/queues/mail")
        table = page.locator("#outcomes table")
        await page.locator("#outcomes summary").press("Enter")
        await expect(table).to_contain_text("1,234")
        await page.evaluate("document.activeElement.blur()")
        await page.keyboard.press("r")
        await page.wait_for_load_state("networkidle")
        await expect(table).to_be_visible()


async def test_a_form_with_a_wrong_field_keeps_what_was_typed(browser: Chromium, pages: Pages) -> None:
    async with tab(browser, pages) as page:
        await page.goto("/ops/tasks/send_email")
        await page.get_by_label("user_id").fill("0")
        await page.get_by_label("subject").fill("Hello <b>you</b>")
        await page.get_by_role("button", name="Make the job").click()
        await expect(page.get_by_label("user_id")).to_have_attribute("aria-invalid", "true")
        await expect(page.get_by_label("subject")).to_have_value("Hello <b>you</b>")
        await page.get_by_label("user_id").fill("4")
        await page.get_by_role("button", name="Make the job").click()
        await expect(page.get_by_role("status").filter(has_text="This is the new job")).to_be_visible()


async def test_many_jobs_by_the_keyboard_alone(browser: Chromium, pages: Pages) -> None:
    async with tab(browser, pages) as page:
        await page.goto("/ops/")
        await page.keyboard.press("g")
        await page.keyboard.press("j")
        await page.wait_for_url("**/ops/jobs")
        await page.keyboard.press("/")
        await page.keyboard.type("state:failed task:send_email")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**q=state*")
        await page.keyboard.press("j")
        await page.keyboard.press("x")
        await expect(page.get_by_label(f"Choose job {pages.ids['FAILED']}")).to_be_checked()
        await page.get_by_role("button", name="Retry", exact=True).press("Enter")
        await expect(page.get_by_text("done to 1 of 1")).to_be_visible()
        await expect(page.locator("#main input[name=id]:checked")).to_have_count(0)
        await page.goto("/ops/jobs")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("k")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_contain_text(f"Job {pages.ids['hostile']}")
        await page.wait_for_load_state()  # until then its script hears no keys
        await page.keyboard.press("?")
        await page.wait_for_url("**/ops/help")


async def test_single_keys_can_be_switched_off(browser: Chromium, pages: Pages) -> None:
    async with tab(browser, pages) as page:
        await page.goto("/ops/")
        await page.get_by_label("Single-key shortcuts").uncheck()
        await page.reload()
        await page.keyboard.press("?")
        await page.keyboard.press("/")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        assert page.url.endswith("/ops/")


async def test_the_skip_link_is_the_first_stop_and_leads_to_the_content(browser: Chromium, pages: Pages) -> None:
    async with tab(browser, pages) as page:
        await page.goto("/ops/jobs")
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"


async def make_and_leave(pages: Pages) -> int:
    """A job by a session that ends at once: the counters of one that stays idle may be told ten seconds later."""
    async with connected(pages.dsn) as connection:
        return await make_job(connection, job_type="add", payload='{"a": 1}')


async def test_an_open_page_shows_what_is_new_but_not_while_somebody_works_in_it(
    browser: Chromium, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pqrun.web.live.WATCH_SECONDS", 0.1)
    async with tab(browser, pages) as page:
        await page.goto("/ops/jobs")
        await expect(page.locator("#live .label")).to_have_text("live")
        first = await make_and_leave(pages)
        await expect(page.locator(f"#job-{first}")).to_be_visible()
        box = page.get_by_label(f"Choose job {pages.ids['READY']}")
        await box.check()
        second = await make_and_leave(pages)
        await expect(page.locator("#live .label")).to_have_text("changed")
        await expect(box).to_be_checked()
        await expect(box).to_be_focused()
        await expect(page.locator(f"#job-{second}")).to_have_count(0)
        await page.locator("#live").click()
        await expect(page.locator(f"#job-{second}")).to_be_visible()


async def test_times_and_colours_are_switched_and_kept(browser: Chromium, pages: Pages) -> None:
    async with tab(browser, pages, timezone_id="Asia/Kolkata", color_scheme="light") as page:
        await page.goto("/ops/operations")
        await page.goto(f"/ops/jobs/{pages.ids['DONE']}")
        first = page.locator(".timeline time").first
        await expect(first).to_contain_text("UTC")
        await page.locator("#zone").click()
        await expect(first).not_to_contain_text("UTC")
        await page.locator("#theme").click()
        await page.locator("#theme").click()
        await page.reload()
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        await expect(first).not_to_contain_text("UTC")


async def test_a_query_is_saved_in_the_browser_and_hostile_names_stay_text(browser: Chromium, pages: Pages) -> None:
    async with tab(browser, pages) as page:
        page.on("dialog", lambda dialog: dialog.accept("<img src=x onerror=alert(1)>"))
        await page.goto("/ops/jobs?q=state:done")
        await page.get_by_role("button", name="Save this query").click()
        await page.goto("/ops/jobs")
        link = page.get_by_role("link", name="<img src=x onerror=alert(1)>")
        await link.click()
        await page.wait_for_url("**q=state%3Adone")
        await page.get_by_role("button", name="Forget").click()
        await expect(link).to_have_count(0)
