"""Every page, as a picture, in light and dark, wide and narrow; with PQRUN_PICTURES=1 they go to docs/images/pages, with axe's report."""

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest
from playwright.async_api import Page

from pqrun import App, JobFilter, Status
from pqrun.web import create_app
from tests.support.waiting import wait_until
from tests.web.gallery import make_shop, open_for_business
from tests.web.serving import by_header, served
from tests.web.test_browser import AXE, NARROW, RULES, WIDE, chromium

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "docs" / "images" / "pages"
REPORT: Final = ROOT / "docs" / "pictures.md"

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
async def shop(dsn: str, connection: asyncpg.Connection) -> AsyncIterator[tuple[str, App[None]]]:
    """The pages of a shop whose worker has worked."""
    jobs = make_shop(dsn)
    worker = jobs.worker(queues={"default": 4, "mail": 2, "video": 2}, worker_id="shop-1")
    async with jobs, worker.lifespan(), served(create_app(jobs, authorize=by_header)) as url:
        await open_for_business(jobs, connection)
        busy = JobFilter(statuses=[Status.READY], queues=["mail", "default"])

        async def is_quiet() -> bool:
            return await jobs.select(busy).count() == 0

        await wait_until(is_quiet)
        await jobs.pause(queue="mail", reason="the provider is down")
        yield url, jobs


async def paths(jobs: App[None]) -> Mapping[str, str]:
    """Each page by the name of its picture."""
    failed = await jobs.select(JobFilter(statuses=[Status.FAILED])).find(limit=1)
    running = await jobs.select(JobFilter(statuses=[Status.RUNNING])).find(limit=1)
    (worker,) = await jobs.store.list_workers()
    return {
        "overview": "/?range=1h",
        "jobs": "/jobs",
        "jobs-failed": "/jobs?q=state:failed task:charge_*",
        "job": f"/jobs/{failed[0].id}",
        "job-running": f"/jobs/{running[0].id}",
        "errors": "/errors",
        "tasks": "/tasks",
        "task": "/tasks/send_email",
        "queues": "/queues",
        "queue": "/queues/mail",
        "schedules": "/schedules",
        "schedule": "/schedules/nightly_report",
        "workers": "/workers",
        "worker": f"/workers/{worker.id}",
        "operations": "/operations",
        "system": "/system",
        "help": "/help",
    }


async def test_every_page_is_fit_to_be_shown(shop: tuple[str, App[None]]) -> None:
    url, jobs = shop
    is_kept = bool(os.environ.get("PQRUN_PICTURES"))
    rows: list[tuple[str, str, int, int]] = []
    async with chromium() as browser:
        for scheme, size in (("light", WIDE), ("dark", NARROW)):
            options: dict[str, Any] = {"viewport": size, "color_scheme": scheme}
            context = await browser.new_context(
                base_url=url,
                bypass_csp=True,
                reduced_motion="reduce",
                extra_http_headers={"x-test-role": "admin"},
                **options,
            )
            page = await context.new_page()
            for name, path in (await paths(jobs)).items():
                answer = await page.goto(path)
                assert answer is not None, path
                assert answer.status == 200, path
                picture = await page.screenshot(animations="disabled")
                passed, violations = await examined(page)
                rows.append((name, scheme, passed, violations))
                if is_kept:
                    FOLDER.mkdir(parents=True, exist_ok=True)
                    (FOLDER / f"{name}-{scheme}.png").write_bytes(picture)
            await context.close()
    assert [row for row in rows if row[3]] == []
    if is_kept:
        REPORT.write_text(report(rows))


async def examined(page: Page) -> tuple[int, int]:
    """How many rules of axe the page passes, and how many it breaks."""
    await page.evaluate(AXE)
    found = await page.evaluate("rules => axe.run(document, rules)", RULES)
    return len(found["passes"]), len(found["violations"])


def report(rows: list[tuple[str, str, int, int]]) -> str:
    """The page of pictures, with what axe says of each."""
    names = list(dict.fromkeys(name for name, *_ in rows))
    counts = {(name, scheme): (passed, violations) for name, scheme, passed, violations in rows}
    lines = [
        "# The web pages in pictures",
        "",
        "Made by the test suite (`make pictures`), of a shop whose jobs a real worker runs: wide in the light theme, narrow in the dark one.",
        "[The guide](web.md) says what each page shows and does.",
        "",
    ]
    for name in names:
        title = name.replace("-", ", ").capitalize()
        lines += [f"## {title}", "", f"![{title}, light](images/pages/{name}-light.png)", ""]
        lines += [f"![{title}, dark and narrow](images/pages/{name}-dark.png)", ""]
    lines += [
        "## Accessibility",
        "",
        "axe-core, with the rules of WCAG 2.0 to 2.2 A and AA and its best practices, on each page as it is above:",
        "",
        "| page | rules passed, light | broken | rules passed, dark | broken |",
        "|---|---|---|---|---|",
    ]
    for name in names:
        light, dark = counts[name, "light"], counts[name, "dark"]
        lines.append(f"| {name.replace('-', ', ')} | {light[0]} | {light[1]} | {dark[0]} | {dark[1]} |")
    return "\n".join(lines) + "\n"
