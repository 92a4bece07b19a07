"""``pqrun defer`` and ``pqrun tasks``: values typed by their fields, refusals by field, and what an app declares."""

import json
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.cli.running import environment, run_command, running
from tests.support.waiting import wait_until

APP = """\
import datetime
from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from pqrun import App, JobContext

jobs = App()


class Order(BaseModel):
    number: int
    card: str
    day: datetime.date | None = None
    tags: list[str] = []
    note: str | int = ""
    sum_: float = Field(default=1.5, alias="sum")
    anything: Any = None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Line(msgspec.Struct):
    sku: str
    count: Annotated[int, msgspec.Meta(ge=1)] = 1


class Paid(BaseModel):
    number: int


@jobs.task(payload=Order, queue="pay", priority=3, timeout=90, dedupe_key="pay:{number}")
async def pay(ctx: JobContext, payload: Order) -> Paid:
    return Paid(number=payload.number)


@jobs.task(payload=Open)
async def take(ctx: JobContext, payload: Open) -> None: ...


@jobs.task(payload=Line, name="line")
async def add_line(ctx: JobContext, payload: Line) -> None: ...


@jobs.task(max_attempts=1)
async def fail(ctx: JobContext, why: str, line: Line | None = None) -> None:
    raise ValueError(why)


jobs.schedule("nightly", add_line.call(sku="x"), cron="30 2 * * *")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


async def run(dsn: str, folder: Path, *arguments: str) -> tuple[int, str]:
    return await run_command("defer", "shop:jobs", *arguments, env=environment(PQRUN_DSN=dsn), cwd=folder)


async def stored(connection: asyncpg.Connection) -> dict[str, Any]:
    row = await connection.fetchrow("SELECT *, payload::text AS text FROM pqrun.jobs ORDER BY id DESC LIMIT 1")
    assert row is not None
    return {**row, "payload": json.loads(row["text"])}


async def test_the_field_decides_what_a_value_is(dsn: str, connection: asyncpg.Connection, folder: Path) -> None:
    given = ["number=42", "card=42", "day=2026-01-31", 'tags=["a"]', "note=7", "sum=2", 'anything={"a": 1}']
    code, output = await run(dsn, folder, "pay", *given)
    row = await stored(connection)
    assert (code, output) == (0, str(row["id"]))
    assert row["payload"] == {
        "number": 42,
        "card": "42",
        "day": "2026-01-31",
        "tags": ["a"],
        "note": 7,
        "sum": 2.0,
        "anything": {"a": 1},
    }
    assert (row["queue"], row["priority"], row["timeout_seconds"], row["dedupe_key"]) == ("pay", 3, 90.0, "pay:42")


async def test_options_of_the_call(dsn: str, connection: asyncpg.Connection, folder: Path) -> None:
    options = [
        "--queue",
        "slow",
        "--priority",
        "-2",
        "--max-attempts",
        "7",
        "--in",
        "5m",
        "--dedupe-key",
        "k",
        "--json",
    ]
    code, output = await run(dsn, folder, "fail", "--json-payload", '{"why": "x"}', "why=y", *options)
    row = await stored(connection)
    assert (code, json.loads(output)) == (0, {"id": row["id"], "created": True})
    assert row["payload"] == {"why": "y", "line": None}
    assert (row["queue"], row["priority"], row["status"], row["dedupe_key"]) == ("slow", -2, "SCHEDULED", "k")
    assert row["max_attempts"] == 7
    code, output = await run(dsn, folder, "fail", "why=z", "--dedupe-key", "k")
    told = f"pqrun: nothing was written: job {row['id']} is active and has the dedupe key"
    assert (code, output) == (0, f"{row['id']}\n{told}")
    await run(dsn, folder, "fail", "why=z", "--at", "2999-01-31T12:00:00Z")
    assert (await stored(connection))["run_after"].year == 2999


async def test_a_model_that_takes_any_field(dsn: str, connection: asyncpg.Connection, folder: Path) -> None:
    code, _ = await run(dsn, folder, "take", "a=1", "b=x")
    assert (code, (await stored(connection))["payload"]) == (0, {"a": 1, "b": "x"})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["pay", "number=4111x", "card=1", "tags=x"], "    number: Input should be a valid integer"),
        (["pay", "number=4111x", "card=1", "tags=x"], "    tags: Input should be a valid array"),
        (["pay", "number=1"], "    card: Field required"),
        (["pay", "number=1", "card=4111", "cart=1"], "    cart: no such field; did you mean card?"),
        (["line", "sku=x", "count=0"], "    count: Expected `int` >= 1"),
        (["pay", "4111"], "expected FIELD=VALUE, such as user_id=7"),
        (["pays", "number=1"], "task: the app has no task 'pays'; did you mean pay?"),
        (["pay", "--json-payload", "[4111]"], "--json-payload: expected a JSON object"),
        (["fail", "why=x", "--in", "soon"], "--in: expected a duration such as 30s, 5m, 2h or 1d; got 'soon'"),
        (["fail", "why=x", "--at", "2026-01-31T12:00"], "--at: expected an instant with its zone"),
        (["fail", "why=x", "--in", "1s", "--at", "2026-01-31"], "give --in or --at, not both"),
        (["fail", "why=x", "--timeout", "1"], "--timeout says how long --wait waits"),
        (["fail", "why=x", "--queue", ""], "queue: expected text of 1 to 200 characters"),
    ],
)
async def test_what_is_refused_is_code_two_by_field_and_without_values(
    dsn: str, connection: asyncpg.Connection, folder: Path, arguments: list[str], told: str
) -> None:
    code, output = await run(dsn, folder, *arguments)
    assert code == 2
    assert told in output
    assert "4111" not in output
    assert await connection.fetchval("SELECT count(*) FROM pqrun.jobs") == 0


async def test_waiting_for_the_end(dsn: str, connection: asyncpg.Connection, folder: Path) -> None:
    env = environment(PQRUN_DSN=dsn)
    code, output = await run(dsn, folder, "fail", "why=x", "--wait", "--timeout", "0.1")
    assert code == 1
    assert "did not finish within 0.1 s; it goes on; pqrun why" in output
    async with running("worker", "shop:jobs", env=env, cwd=folder) as worker:
        code, output = await run(dsn, folder, "pay", "number=7", "card=x", "--wait")
        row = await stored(connection)
        assert (code, output.splitlines()) == (0, [str(row["id"]), '{"number": 7}'])
        code, output = await run(dsn, folder, "fail", "why=no such card", "--wait")
        assert code == 1
        assert output.endswith("ended FAILED: ValueError: no such card")
        worker.process.terminate()
        assert await worker.end() == 0


async def test_waiting_for_a_job_that_is_cancelled(dsn: str, connection: asyncpg.Connection, folder: Path) -> None:
    env = environment(PQRUN_DSN=dsn)
    async with running("defer", "shop:jobs", "fail", "why=x", "--wait", env=env, cwd=folder) as waiting:

        async def is_written() -> bool:
            return bool(await connection.fetchval("SELECT count(*) FROM pqrun.jobs"))

        await wait_until(is_written)
        await run_command("cancel", "--all", env=env)
        assert await waiting.end() == 1
        assert waiting.lines[-1].endswith("ended CANCELLED")


async def test_tasks_are_listed_without_a_database(folder: Path) -> None:
    code, output = await run_command("tasks", "shop:jobs", cwd=folder)
    lines = output.splitlines()
    assert code == 0
    assert [line.split()[0] for line in lines] == ["task", "fail", "line", "pay", "take"]
    assert lines[2].split()[1:5] == ["default", "0", "5", "1"]
    assert "nightly: " in lines[2]
    assert lines[2].endswith("sku, count?")
    assert lines[3].split()[1:6] == ["pay", "3", "5", "1m", "30s"]


async def test_tasks_as_json_and_the_schemas_of_one(folder: Path) -> None:
    code, output = await run_command("tasks", "shop:jobs", "--json", cwd=folder)
    found = {task["name"]: task for task in json.loads(output)}
    assert code == 0
    assert found["line"]["schedules"][0]["name"] == "nightly"
    assert found["pay"]["timeout_seconds"] == 90.0
    assert found["fail"]["result"] == {"type": "null"}
    code, output = await run_command("tasks", "shop:jobs", "--schema", "pay", cwd=folder)
    schemas = json.loads(output)
    assert code == 0
    assert schemas["payload"]["required"] == ["number", "card"]
    assert schemas["payload"]["properties"]["sum"] == {"default": 1.5, "title": "Sum", "type": "number"}
    assert schemas["result"]["properties"]["number"]["type"] == "integer"
    code, output = await run_command("tasks", "shop:jobs", "--schema", "pai", cwd=folder)
    assert (code, output) == (2, "pqrun: task: the app has no task 'pai'; did you mean pay?")
