"""``pqrun doctor``: text, JSON and exit codes."""

import json
from pathlib import Path

from pqrun import PgJobStore
from tests.cli.running import environment, run_command


async def test_problems_are_shown_with_their_fix_and_give_exit_code_one(dsn: str, store: PgJobStore) -> None:
    await store.enqueue("[bold]nobody", {}, queue="mail")
    code, output = await run_command("doctor", env=environment(PQRUN_DSN=dsn, COLUMNS="200"))
    assert code == 1
    assert "no worker is alive" in output
    assert "→ start one: pqrun worker module:app" in output
    assert "[bold]nobody waits in queue mail" in output
    assert "2 problems" in output


async def test_json_has_every_finding(dsn: str) -> None:
    code, output = await run_command("doctor", "--json", env=environment(PQRUN_DSN=dsn))
    findings = {found["check"]: found for found in json.loads(output)["findings"]}
    assert code == 1
    assert findings["workers"] == {
        "check": "workers",
        "level": "problem",
        "found": "no worker is alive",
        "fix": "start one: pqrun worker module:app",
    }
    assert findings["rights"]["level"] == "ok"


async def test_a_database_that_is_not_there_is_a_finding_and_no_traceback(tmp_path: Path) -> None:
    dsn = "postgresql://app:geheim@127.0.0.1:1/shop"
    code, output = await run_command("doctor", "--dsn", dsn, env=environment(COLUMNS="200"), cwd=tmp_path)
    assert code == 1
    assert "cannot connect to 127.0.0.1:1/shop" in output
    assert "geheim" not in output
    assert "Traceback" not in output


async def test_without_any_dsn_it_says_how_to_give_one(tmp_path: Path) -> None:
    code, output = await run_command("doctor", env=environment(), cwd=tmp_path)
    assert code == 1
    assert "--dsn" in output
