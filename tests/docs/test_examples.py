"""Every program in ``examples/`` does what it says, against a real database."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.installed import installed_in

EXAMPLES = Path(__file__).parents[2] / "examples"

SCRIPTS = {
    "quickstart": ["total=4"],
    "own_transaction": ["invoice: {'order_id': 1}", "rolled back: an order needs a customer", "orders: 1", "jobs: 1"],
    "low_level": ['True {"by": "mailer", "message_id": "m-1"}'],
    "scheduled_and_retries": [
        "soon: {'day': 'Thursday'}",
        "tomorrow: SCHEDULED -> CANCELLED",
        "fetched: {'attempts': 3}",
        "failed: job 4 failed: PermissionError: the card was declined",
        "paid: {'charged': 'visa'}",
    ],
    "schedules": [
        "ticked",
        "nightly: at 02:30 every day, Europe/Berlin, active",
        "tick: every second, active",
        "nightly, now: {'has_planned_time': True}",
        "nightly: at 04:00 on Monday through Friday, Europe/Berlin (edited)",
        "tick: paused",
        "weekly: at 06:00 on Sunday, America/New_York; True",
    ],
    "queues": [
        "mail hangs, {'resized': 'a.png'}",
        "paused: True",
        "queue mail: provider down",
        "first: {'sent_to': 0}",
        "mail, ready: 8 slots: 2",
        "resumed: True",
        "last: {'sent_to': 9}",
    ],
    "steering": [
        "it waits in fetch: True",
        "first: {'crawled': '/a'}",
        "second, paused: READY",
        "second: {'crawled': '/b'}",
        "drained: the program goes on",
    ],
    "many_jobs": [
        "would be retried: 20",
        "retried: 20",
        "cancelled: 1",
        "moved: 9 refused: {'already_finished': 1}",
        "last: {'sent': 'welcome'}",
    ],
    "outcomes": [
        "fetched: {'snoozes': 3, 'attempts': 1}",
        "called: {'attempts': 2}",
        "uploaded: {'attempts': 3}",
        "job 4 failed: pqrun.Abort: there is no user 8 after attempt 1",
        "job 5 failed: ValueError: a path is needed after attempt 1",
    ],
    "progress": [
        "it only grew: True",
        "last: page 20 of 20",
        "result: {'pages': 20}",
        "result: {'words': 3}",
        "a thread reported: 1.0",
    ],
    "observed": [
        "ready 4",
        'pqrun_job_outcomes_total{outcome="done",queue="mail",task="send"} 2.0',
        'pqrun_job_outcomes_total{outcome="failed",queue="mail",task="send"} 1.0',
        "send started=3 done=2 failed=1",
    ],
    "attempts": [
        "{'charged': 'visa'}",
        "attempt 1: ConnectionError: the bank does not answer, then SCHEDULED",
        "attempt 2: ConnectionError: the bank does not answer, then SCHEDULED",
        "job 2 failed: NoSuchCard: the customer has none",
        "job 3 failed: NoSuchCard: the customer has none",
        "job 4 failed: NoSuchCard: the customer has none",
        "3 times attempts.NoSuchCard of pay in attempts:charge",
        "2 times ConnectionError of pay in attempts:charge",
    ],
    "sync_handler": ["digest: a8df899f3c4f204d", "job 1 was cancelled"],
    "sql_trigger": ["{'indexed': 1}", "{'indexed': 2}"],
    "middleware": [
        "send_invoice 1 goes to tenant-north",
        "send_invoice 2 goes to tenant-south",
        "send_invoice 3 goes to tenant-south",
        "job 3 failed: ValueError: there is no invoice 0",
        "done: north/1, south/2",
    ],
    "sync_script": [
        "created: True False True",
        "status: READY",
        "cancel: CANCELLED",
        "invoice: 2026-1",
        "others: ['2026-2', '2026-3']",
        "last: CANCELLED",
    ],
    "resources": ["opened", "{'converted': 25.0}", "{'converted': 50.0}", "{'converted': 75.0}", "closed"],
}
WEB = {"fastapi_app", "fastapi_pages", "starlette_app", "litestar_app", "flask_app", "django_shop"}
"""Served by test_frameworks.py."""
TESTED = {"welcome", "test_welcome"}


def test_every_example_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES.iterdir() if path.name != "__pycache__"} == {*SCRIPTS, *WEB, *TESTED}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_script_prints_what_it_promises(dsn: str, name: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")),
        env={**os.environ, "PQRUN_DSN": dsn, "PYTHONPATH": str(EXAMPLES.parent)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert (process.returncode, [line for line in err.decode().splitlines() if not line.startswith("failed ")]) == (
        0,
        [],
    )
    assert out.decode().splitlines() == SCRIPTS[name]


def test_the_example_of_tests_passes_under_pytest(dsn: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *("-W", "error", "-W", "ignore:Using `httpx` with `starlette.testclient` is deprecated"),
            str(EXAMPLES / "test_welcome.py"),
        ],
        cwd=EXAMPLES.parent,
        env={**os.environ, "PYTHONPATH": installed_in(tmp_path), "PQRUN_TEST_DSN": dsn},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
