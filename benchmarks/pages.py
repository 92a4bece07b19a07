"""``python -m benchmarks pages``: how long each web page takes the server with ten million finished and a million waiting jobs."""

import statistics
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx

from benchmarks.ground import (
    DsnOption,
    Ground,
    Measured,
    OutOption,
    QuickOption,
    RepeatOption,
    at_most,
    run_measurement,
)
from benchmarks.results import Reach
from pqrun import App, JobContext
from pqrun.web import Access, Role, create_app

__all__ = ["main", "measure"]

FINISHED, READY, FAILED, MINUTES = 10_000_000, 1_000_000, 200_000, 7 * 24 * 60

GOAL_MS = 100.0

FINISHED_ROWS = """
INSERT INTO pqrun.jobs_finished (id, job_type, queue, payload, status, attempts, claim_id, worker, locked_by, created_at, run_after,
                                 locked_at, finished_at, updated_at, duration_ms, result, last_error)
SELECT i, t.job_type, t.queue, jsonb_build_object('user_id', i % 50000), CASE WHEN f.failed THEN 'FAILED' ELSE 'DONE' END, 1, i,
       CASE WHEN NOT f.failed THEN 0 END, CASE WHEN NOT f.failed THEN 'gone' END, t.at, t.at, CASE WHEN NOT f.failed THEN t.at END,
       t.at, t.at, i % 900, CASE WHEN NOT f.failed THEN '{"ok": true}'::jsonb END,
       CASE WHEN f.failed THEN 'ConnectionError: refused' END
  FROM generate_series(1, COUNT) AS i
 CROSS JOIN LATERAL (SELECT now() - interval '6 days' + i * (interval '6 days' / COUNT) AS at,
                            (ARRAY['send_email', 'charge_card', 'sync_account'])[1 + i % 3] AS job_type,
                            (ARRAY['mail', 'default'])[1 + i % 2] AS queue) t
 CROSS JOIN LATERAL (SELECT i % 50 = 0 AS failed) f
"""
"""Six days of three tasks, one in fifty failed."""

READY_ROWS = """
INSERT INTO pqrun.jobs_active (job_type, queue, payload, status, run_after)
SELECT (ARRAY['send_email', 'charge_card', 'sync_account'])[1 + i % 3], (ARRAY['mail', 'default'])[1 + i % 2],
       jsonb_build_object('user_id', i % 50000), CASE WHEN i % 4 = 0 THEN 'SCHEDULED' ELSE 'READY' END,
       now() + CASE WHEN i % 4 = 0 THEN interval '1 hour' ELSE interval '0' END
  FROM generate_series(1, COUNT) AS i
"""

ATTEMPT_ROWS = """
INSERT INTO pqrun.attempts (job_id, job_type, queue, number, kind, started_at, ended_at, duration_ms, worker, status_after,
                            exception_type, message, traceback, frame, fingerprint)
SELECT i * 50, (ARRAY['send_email', 'charge_card', 'sync_account'])[1 + (i * 50) % 3], 'mail', 1, 'error', now(), now(), 5, 'gone',
       'FAILED', 'ConnectionError', 'refused', 'Traceback', 'shop:send:7', md5((i % 40)::text)
  FROM generate_series(1, COUNT) AS i
"""
"""In forty groups."""

STATISTICS_ROWS = """
INSERT INTO pqrun.statistics (minute, worker, queue, job_type, started, arrived, done, failed, retrying, snoozed, cancelled, lost,
                              released, run_ms, wait_ms, run_counts, wait_counts)
SELECT date_trunc('minute', now()) - m * interval '1 minute', 1, k.queue, k.job_type, 300, 300, 290, 6, 4, 0, 0, 0, 0, 9000, 3000,
       '{0,0,100,150,50}', '{0,200,100}'
  FROM (VALUES ('mail', 'send_email'), ('default', 'charge_card'), ('default', 'sync_account')) AS k(queue, job_type)
 CROSS JOIN generate_series(1, COUNT) AS m
"""
"""A week of one worker's minutes."""


def _everybody(_request: object) -> Access:
    return Access(user="ann", role=Role.ADMIN)


def _paths(last: int) -> Mapping[str, str]:
    return {
        "overview, 1h": "/?range=1h",
        "overview, 24h": "/?range=24h",
        "jobs": "/jobs",
        "jobs, failed": "/jobs?q=state:failed",
        "jobs of a task, failed, since": "/jobs?q=state:failed task:send_* since:1d",
        "jobs by payload": "/jobs?q=payload.user_id:42",
        "jobs, sorted by end": "/jobs?q=state:done&sort=ended",
        "jobs, deep": f"/jobs?before={last // 2}",
        "a job": f"/jobs/{last}",
        "errors": "/errors",
        "tasks": "/tasks",
        "a task": "/tasks/send_email",
        "queues": "/queues",
        "a queue": "/queues/mail",
        "schedules": "/schedules",
        "workers": "/workers",
        "operations": "/operations",
        "system": "/system",
        "help": "/help",
    }


@asynccontextmanager
async def _opened(dsn: str) -> AsyncIterator[httpx.AsyncClient]:
    jobs = App(dsn=dsn)

    @jobs.task
    async def send_email(ctx: JobContext, user_id: int) -> None: ...

    @jobs.task
    async def charge_card(ctx: JobContext, user_id: int) -> None: ...

    @jobs.task
    async def sync_account(ctx: JobContext, user_id: int) -> None: ...

    pages = httpx.ASGITransport(create_app(jobs, authorize=_everybody))
    async with jobs, httpx.AsyncClient(transport=pages, base_url="http://pages", timeout=60) as client:
        yield client


async def measure(ground: Ground) -> list[Measured]:
    """The time of each page in the server, rendering included, and the slowest of them."""
    finished, ready = ground.sized(FINISHED, 20_000), ground.sized(READY, 5_000)
    async with ground.database() as database:
        ground.tell(f"{finished:,} finished and {ready:,} waiting jobs ...")
        await database.execute(
            FINISHED_ROWS.replace("COUNT", str(finished)),
            f"SELECT setval('pqrun.jobs_id_seq', {finished})",
            READY_ROWS.replace("COUNT", str(ready)),
            ATTEMPT_ROWS.replace("COUNT", str(min(FAILED, finished // 50))),
            STATISTICS_ROWS.replace("COUNT", str(ground.sized(MINUTES, 60))),
        )
        await database.rest()
        async with _opened(database.dsn) as client:
            rows = [
                await _timed(client, f"pages.{number}", name, path, ground.repeat + 1)
                for number, (name, path) in enumerate(_paths(finished).items())
            ]
    slowest = max(rows, key=lambda row: row.value)
    return [*rows, Measured("pages.slowest", f"the slowest: {slowest.what}", slowest.value, "ms", _goal())]


def _goal() -> Reach:
    return at_most(GOAL_MS, f"at most {GOAL_MS:g} ms")


async def _timed(client: httpx.AsyncClient, row: str, name: str, path: str, tries: int) -> Measured:
    samples = []
    for _ in range(tries):
        began = time.perf_counter()
        answer = await client.get(path)
        samples.append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200, (path, answer.status_code)
    del samples[0]  # the first finds a cold cache and compiles its template
    return Measured(row, name, statistics.median(samples), "ms", _goal(), samples=samples)


def main(dsn: DsnOption = None, out: OutOption = None, quick: QuickOption = False, repeat: RepeatOption = 3) -> None:
    """Load each web page beside ten million finished and a million waiting jobs."""
    run_measurement("pages", measure, dsn=dsn, out=out, quick=quick, repeat=repeat)
