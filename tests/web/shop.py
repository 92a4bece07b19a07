"""An app with tasks of several kinds, and rows in every state, hostile ones too."""

import enum
import json
from datetime import UTC, date, datetime
from typing import Any

import asyncpg
from pydantic import BaseModel, Field

from pqrun import App, JobContext, PgJobStore, Status
from pqrun.job.statistics import MinuteCounts
from pqrun.store.statistics import Minute, add_minutes
from tests.support.rows import make_job, make_worker

HOSTILE = "<script>alert(1)</script>\"'&{{7*7}}"


class Kind(enum.StrEnum):
    WELCOME = "welcome"
    REMINDER = "reminder"


class Mail(BaseModel):
    user_id: int = Field(ge=1, description=f"Of the users {HOSTILE}")
    kind: Kind = Kind.WELCOME
    subject: str | None = None
    day: date | None = None
    urgent: bool = False
    tags: list[str] = []


def make_app(dsn: str) -> App[None]:
    """The tasks of the tests."""
    jobs = App(dsn=dsn)

    @jobs.task(payload=Mail, queue="mail", max_attempts=3)
    async def send_email(ctx: JobContext, payload: Mail) -> None: ...

    @jobs.task
    async def add(ctx: JobContext, a: int, b: int = 2) -> None: ...

    @jobs.task(name=HOSTILE)
    async def hostile(ctx: JobContext) -> None: ...

    jobs.schedule("nightly", add.call(a=1), cron="30 2 * * *", tz="Europe/Berlin")
    return jobs


async def fill(connection: asyncpg.Connection) -> dict[str, int]:
    """One job of each state, a worker, and a job whose every text is hostile; ids by name."""
    worker = await make_worker(connection, f"w {HOSTILE}")
    await connection.execute(
        "UPDATE pqrun.workers SET job_types = '{send_email,add}', queues = '{mail,default}' WHERE id = $1", worker
    )
    ids: dict[str, int] = {"worker": worker}
    for status in Status:
        more: dict[str, Any] = {"worker": worker} if status is Status.RUNNING else {}
        payload = json.dumps({"user_id": 1})
        ids[status.value] = await make_job(
            connection, status=status, job_type="send_email", queue="mail", payload=payload, **more
        )
    ids["hostile"] = await make_job(
        connection,
        status=Status.FAILED,
        job_type=HOSTILE,
        queue=HOSTILE,
        dedupe_key=HOSTILE,
        payload=json.dumps({HOSTILE: HOSTILE}),
        last_error=f'Traceback (most recent call last):\n  File "/x/{HOSTILE}.py", line 1, in f\nValueError: {HOSTILE}',
    )
    for name, text in (("FAILED", "no such card"), ("hostile", HOSTILE)):
        await add_attempt(connection, ids[name], text)
    await connection.execute(
        "INSERT INTO pqrun.progress (job_id, claim_id, attempt, value, message) "
        "SELECT id, claim_id, 1, 0.25, $2 FROM pqrun.jobs WHERE id = $1",
        ids["RUNNING"],
        HOSTILE,
    )
    await connection.execute(
        "INSERT INTO pqrun.pauses (kind, name, paused_at, reason) VALUES ('queue', $1, now(), $1)", HOSTILE
    )
    return ids


async def fill_more(connection: asyncpg.Connection) -> dict[str, int]:
    """A job of a schedule with headers and a dedupe key that another had, and an operation that is over."""
    ids: dict[str, int] = {}
    ids["child"] = await make_job(
        connection,
        job_type="add",
        queue="mail",
        payload='{"a": 1}',
        dedupe_key="user-1",
        headers=json.dumps({"traceparent": f"00-{'4b' * 16}-{'0f' * 8}-01", HOSTILE: HOSTILE}),
        scheduled_for=datetime.now(UTC),
    )
    await make_job(connection, status=Status.DONE, job_type="add", dedupe_key="user-1", payload='{"a": 1}')
    ids["operation"] = await connection.fetchval(
        "INSERT INTO pqrun.operations (actor, action, query, state, matched, done, ended_at) "
        "VALUES ($1, 'retry', $2, 'DONE', 3, 3, now()) RETURNING id",
        HOSTILE,
        "state:failed task:add",
    )
    return ids


async def add_attempt(connection: asyncpg.Connection, job_id: int, text: str, job_type: str = "send_email") -> None:
    """An attempt of a job that failed with this text."""
    await connection.execute(
        "INSERT INTO pqrun.attempts (job_id, started_at, ended_at, number, job_type, queue, kind, status_after, worker, exception_type, "
        "frame, fingerprint, message, traceback, duration_ms) "
        "VALUES ($1, now(), now(), 1, $3, 'mail', 'error', 'FAILED', $2, $4, $2, md5($2), $2, $5, 7)",
        job_id,
        text,
        job_type,
        f"shop.{text[:8]}Error",
        f'Traceback (most recent call last):\n  File "/usr/lib/python3.11/x.py", line 1, in f\nValueError: {text}',
    )


async def add_statistics(
    store: PgJobStore,
    worker: int,
    *,
    queue: str = "mail",
    task: str = "send_email",
    done: int = 0,
    failed: int = 0,
    minutes_ago: int = 3,
) -> None:
    """What a worker writes of a minute: jobs that waited for 2 s and ran for 100 ms."""
    counts = MinuteCounts()
    counts.first_waits = [2.0] * (done + failed)
    counts.done_times = [100] * done
    counts.other_times = [100] * failed
    counts.failed = failed
    counts.fold()
    clock = await add_minutes(store, [])
    await add_minutes(store, [Minute(clock // 60 * 60 - minutes_ago * 60, worker, queue, task, counts)])
