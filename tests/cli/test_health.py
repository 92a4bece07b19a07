"""``pqrun worker --health-port``, and logs as JSON: real processes, real HTTP."""

import json
import re
import signal
from pathlib import Path

import httpx
import pytest

from pqrun import PgJobStore
from tests.cli.running import environment, run_command, running, without
from tests.contrib.scraping import samples
from tests.support.waiting import DEADLINE_SECONDS, wait_until

SERVED = r"health checks are served on (http://127\.0\.0\.1:\d+): (.*)"
SECRET = {"number": 1, "card": "4111-1111"}

BLOCKING = """
import time

from pqrun import App, JobContext

jobs = App()


@jobs.task
async def block(ctx: JobContext, seconds: float) -> None:
    time.sleep(seconds)
"""


async def test_probes_and_metrics_of_a_worker(shop: Path, dsn: str, store: PgJobStore) -> None:
    flags = ("--health-port", "0")
    async with running("worker", "shop:jobs", *flags, env=environment(PQRUN_DSN=dsn), cwd=shop) as worker:
        served = await worker.wait_line(SERVED)
        assert served[2] == "/livez, /readyz, /metrics"
        await worker.wait_line("worker .* started")
        async with httpx.AsyncClient(base_url=served[1], timeout=DEADLINE_SECONDS) as client:
            assert (await client.get("/livez")).status_code == 200

            async def is_ready() -> bool:
                return (await client.get("/readyz")).status_code == 200

            await wait_until(is_ready)
            await store.wait_end(await store.enqueue("pay", SECRET), DEADLINE_SECONDS)
            metrics = await client.get("/metrics")
            found = samples(metrics.text)
            key = frozenset({"queue": "default", "task": "pay", "outcome": "done"}.items())
            assert found["pqrun_job_outcomes_total", key] == 1
            openmetrics = await client.get(
                "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
            )
            assert openmetrics.text.endswith("# EOF\n")
            assert "4111" not in metrics.text + openmetrics.text
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0


async def test_a_handler_that_blocks_the_loop_fails_liveness_until_it_ends(
    tmp_path: Path, dsn: str, store: PgJobStore
) -> None:
    (tmp_path / "blocking.py").write_text(BLOCKING)
    flags = ("--health-port", "0", "--health-blocked-after", "0.5")
    async with running("worker", "blocking:jobs", *flags, env=environment(PQRUN_DSN=dsn), cwd=tmp_path) as worker:
        url = (await worker.wait_line(SERVED))[1]
        await worker.wait_line("worker .* started")
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_SECONDS) as client:

            async def status() -> int:
                return (await client.get("/livez")).status_code

            assert await status() == 200
            job_id = await store.enqueue("block", {"seconds": 3.0})

            async def is_blocked() -> bool:
                return await status() == 503

            await wait_until(is_blocked)
            await store.wait_end(job_id, DEADLINE_SECONDS)

            async def is_live() -> bool:
                return await status() == 200

            await wait_until(is_live)
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0


async def test_without_the_extra_all_but_metrics_is_served(shop: Path, dsn: str) -> None:
    flags = ("--health-port", "0")
    program = without("prometheus_client")
    async with running(
        "worker", "shop:jobs", *flags, env=environment(PQRUN_DSN=dsn), cwd=shop, program=program
    ) as worker:
        await worker.wait_line(r"/metrics is not served; for that run: pip install 'pqrun\[prometheus\]'")
        served = await worker.wait_line(SERVED)
        assert served[2] == "/livez, /readyz"
        async with httpx.AsyncClient(base_url=served[1], timeout=DEADLINE_SECONDS) as client:
            assert (await client.get("/metrics")).status_code == 404
        await worker.wait_line("worker .* started")
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0


async def test_a_port_that_is_taken_is_one_line(shop: Path, dsn: str) -> None:
    env = environment(PQRUN_DSN=dsn)
    async with running("worker", "shop:jobs", "--health-port", "0", env=env, cwd=shop) as worker:
        port = (await worker.wait_line(r"served on http://127\.0\.0\.1:(\d+)"))[1]
        code, output = await run_command("worker", "shop:jobs", "--health-port", port, env=env, cwd=shop)
        assert code == 1
        assert re.search(rf"^pqrun: health checks cannot be served on 127\.0\.0\.1 port {port}: ", output, re.MULTILINE)
        assert "Traceback" not in output


async def test_logs_as_json_have_fields_and_no_payload(shop: Path, dsn: str, store: PgJobStore) -> None:
    flags = ("--log-format", "json", "--worker-id", "till")
    async with running("worker", "shop:jobs", *flags, env=environment(PQRUN_DSN=dsn), cwd=shop) as worker:
        await worker.wait_line("worker till started")
        refused = await store.enqueue("refuse", SECRET, max_attempts=1)
        await worker.wait_line('"event": "Failed"')
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0
    lines = [json.loads(line) for line in worker.lines]
    (failed,) = [line for line in lines if line.get("event") == "Failed"]
    assert (failed["level"], failed["logger"], failed["error"]) == ("ERROR", "pqrun", "ValueError: no such card")
    named = {name: failed[name] for name in ("job_id", "job_type", "queue", "attempt", "max_attempts")}
    assert named == {"job_id": refused, "job_type": "refuse", "queue": "default", "attempt": 1, "max_attempts": 1}
    (started,) = [line for line in lines if line.get("event") == "WorkerStarted"]
    assert (started["worker_id"], started["concurrency"]) == ("till", 1)
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert "4111" not in worker.output


@pytest.mark.parametrize(
    "flags", [("--health-port", "70000"), ("--health-blocked-after", "0"), ("--log-format", "xml")]
)
async def test_impossible_flags_are_wrong_usage(shop: Path, flags: tuple[str, str]) -> None:
    code, output = await run_command("worker", "shop:jobs", *flags, env=environment(), cwd=shop)
    assert code == 2
    assert flags[0] in output
