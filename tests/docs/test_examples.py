"""Every program in ``examples/`` does what it says, against a real database."""

import asyncio
import os
import runpy
import sys
from pathlib import Path

import asyncpg
import httpx
import pytest
from starlette.applications import Starlette

from pqrun import App
from tests.public.at_work import at_work

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
    "sync_handler": ["digest: a8df899f3c4f204d", "job 1 was cancelled"],
    "resources": ["opened", "{'converted': 25.0}", "{'converted': 50.0}", "{'converted': 75.0}", "closed"],
}
WEB = {"fastapi_app", "starlette_app"}


def test_every_example_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SCRIPTS, *WEB}


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


def load(name: str, dsn: str, monkeypatch: pytest.MonkeyPatch) -> tuple[App[None], Starlette]:
    """Run the module as a server would import it; gives ``jobs`` and ``app``."""
    monkeypatch.setenv("PQRUN_DSN", dsn)
    module = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=f"examples.{name}")
    return module["jobs"], module["app"]


async def test_the_fastapi_example_enqueues_and_gives_status_and_typed_result(
    dsn: str, monkeypatch: pytest.MonkeyPatch, connection: asyncpg.Connection
) -> None:
    _, app = load("fastapi_app", dsn, monkeypatch)
    transport = httpx.ASGITransport(app=app)
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        app.router.lifespan_context(app),
    ):
        accepted = await client.post("/emails", json={"user_id": 7})
        assert (accepted.status_code, accepted.json()) == (202, {"id": 1, "created": True})
        async with asyncio.timeout(30):
            while (progress := (await client.get("/emails/1")).json())["status"] != "DONE":
                assert progress["result"] is None
        assert progress == {"status": "DONE", "result": {"message_id": "welcome-7"}}
        assert (await client.get("/emails/2")).status_code == 404
        await connection.execute("SELECT pqrun.enqueue('another', '{}')")
        assert (await client.get("/emails/2")).status_code == 404
        assert (await client.post("/emails", json={"user_id": "x"})).status_code == 422


async def test_the_starlette_example_waits_for_a_worker_elsewhere(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, app = load("starlette_app", dsn, monkeypatch)
    transport = httpx.ASGITransport(app=app)
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        app.router.lifespan_context(app),
        at_work(jobs),
    ):
        answer = await client.post("/resize", json={"path": "a.png", "width": 50})
        assert (await client.post("/resize", json={"width": "x"})).status_code == 422
    assert answer.json() == {"id": 1, "path": "50/a.png"}
