"""Every program in ``examples/`` does what it says, against a real database."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

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
    "sync_handler": ["digest: a8df899f3c4f204d", "job 1 was cancelled"],
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
WEB = {"fastapi_app", "starlette_app", "litestar_app", "flask_app", "django_shop"}
"""Served by test_frameworks.py."""


def test_every_example_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES.iterdir() if path.name != "__pycache__"} == {*SCRIPTS, *WEB}


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
