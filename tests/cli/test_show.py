"""``pqrun show``: one job, its attempts, what is hidden and folded, JSON, and exit codes."""

import json

import asyncpg
import pytest

from pqrun.job.failure import Failure, FailureKind
from pqrun.job.outcome import Failed, Recovered
from pqrun.job.record import Claim
from pqrun.job.state import Status
from pqrun.store import PgJobStore
from pqrun.store.settling import settle
from tests.cli.running import environment, run_command
from tests.support.rows import make_job

SECRET = "payload-nobody-may-see"
TRACEBACK = "Traceback (most recent call last):\n  line \x1b[31m\nshop.NoCard: no such card"


async def show(dsn: str, *arguments: str) -> tuple[int, str]:
    return await run_command("show", *arguments, env=environment(PQRUN_DSN=dsn))


@pytest.fixture
async def failed(store: PgJobStore, connection: asyncpg.Connection) -> int:
    """A job that lost its worker, and then failed."""
    payload = json.dumps({"card": SECRET})
    job_id = await make_job(connection, status=Status.RUNNING, job_type="pay", payload=payload, locked_by="w-1")
    claim = "SELECT claim_id FROM pqrun.jobs WHERE id = $1"
    async with store.connection() as own:
        session = store.session(own)
        await settle(session, [Recovered(Claim(job_id, await connection.fetchval(claim, job_id)), "lost its worker")])
        again = """UPDATE pqrun.jobs SET status = 'RUNNING', attempts = 2, locked_at = clock_timestamp(), locked_by = 'w-2',
                          claim_id = 77 WHERE id = $1"""
        await connection.execute(again, job_id)
        failure = Failure(FailureKind.ERROR, "shop.NoCard", "no such card\nat all", "shop:pay:12")
        await settle(session, [Failed(Claim(job_id, 77), 1500, TRACEBACK, failure)])
    return job_id


async def test_a_job_is_shown_with_its_attempts_payload_hidden_and_tracebacks_folded(dsn: str, failed: int) -> None:
    code, output = await show(dsn, str(failed))
    assert code == 0
    lines = output.splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines[: lines.index("")])
    assert (shown["id"], shown["job_type"], shown["status"], shown["attempts"]) == (str(failed), "pay", "FAILED", "2")
    assert (shown["last_error"], shown["payload"]) == ("shop.NoCard: no such card", "hidden; --payload shows it")
    assert SECRET not in output
    told = lines[lines.index("") + 1 :]
    assert told[0] == "2 attempts that did not succeed, the newest last:"
    assert told[1].startswith("#1 lost ")
    assert told[1].endswith(" on w-1, then READY")
    assert told[2] == "    lost its worker"
    assert told[3].startswith("#2 error ")
    assert told[3].endswith(" after 1.5 s on w-2, then FAILED")
    assert told[4:] == [
        "    shop.NoCard: no such card",
        "    at shop:pay:12",
        "    3 lines of traceback; --traceback shows them",
    ]


async def test_traceback_and_payload_are_shown_on_demand_without_control_characters(dsn: str, failed: int) -> None:
    code, output = await show(dsn, str(failed), "--traceback", "--payload")
    assert code == 0
    assert SECRET in output
    assert output.endswith(
        "    Traceback (most recent call last):\n      line \\x1b[31m\n    shop.NoCard: no such card"
    )


async def test_json_has_all_but_what_is_hidden(dsn: str, failed: int) -> None:
    code, output = await show(dsn, str(failed), "--json")
    assert code == 0
    told = json.loads(output)
    assert (told["id"], told["status"], told["last_error"]) == (failed, "FAILED", TRACEBACK)
    assert "payload" not in told
    first, second = told["attempts_kept"]
    assert (first["kind"], second["kind"], second["frame"]) == ("lost", "error", "shop:pay:12")
    assert "traceback" not in second
    code, output = await show(dsn, str(failed), "--json", "--payload", "--traceback")
    told = json.loads(output)
    assert (told["payload"], told["result"]) == ({"card": SECRET}, None)
    assert told["attempts_kept"][1]["traceback"] == TRACEBACK


async def test_a_job_that_did_well_has_none(dsn: str, connection: asyncpg.Connection) -> None:
    job_id = await make_job(connection, status=Status.DONE)
    code, output = await show(dsn, str(job_id))
    assert code == 0
    assert output.endswith("no attempt that did not succeed is kept")
    assert '{"ok": true}' not in output
    assert '"ok":' in (await show(dsn, str(job_id), "--payload"))[1]


async def test_no_such_job_is_code_one_and_no_id_code_two(dsn: str) -> None:
    assert await show(dsn, "12345") == (
        1,
        "pqrun: there is no job 12345: never written, deleted, or removed by retention",
    )
    assert (await show(dsn, "x"))[0] == 2
    assert (await show(dsn, "0"))[0] == 2
