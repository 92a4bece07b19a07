"""What users' tests write with ``pqrun.testing`` must type-check, and what must not.

A line that ends in `# E` must be reported by both checkers; no other line may be reported.
The file is checked, never run.
"""

from datetime import UTC, datetime, timedelta
from typing import assert_type

from pydantic import BaseModel
from typing_extensions import TypedDict

from pqrun import App, Job, JobContext
from pqrun.testing import (
    Bind,
    DrainReport,
    Ran,
    advance,
    assert_enqueued,
    assert_enqueued_sync,
    assert_not_enqueued,
    drain,
    drain_sync,
    drop_connections,
    enqueued,
    enqueued_sync,
    fail_attempt,
    inline,
    lose_worker,
)

jobs = App()


class Welcome(BaseModel):
    user_id: int


class Other(BaseModel):
    user_id: int


class Mail(TypedDict):
    to: str


@jobs.task(payload=Welcome)
async def send_email(ctx: JobContext, payload: Welcome) -> None: ...


@jobs.task
async def add(ctx: JobContext, a: int, b: int = 2) -> dict[str, int]:
    return {"sum": a + b}


@jobs.task(payload=Mail)
def post(ctx: JobContext, payload: Mail) -> None: ...


async def right(pqrun_bind: Bind, error: ValueError) -> None:
    assert_type(pqrun_bind(jobs), App[None])
    async with pqrun_bind(jobs) as opened:
        assert_type(opened, App[None])
    assert_type(await enqueued(send_email), list[Welcome])
    assert_type(await enqueued(post, queue="mail"), list[Mail])
    assert_type(await enqueued(add), list[dict[str, object]])
    assert_type(await enqueued(send_email.options(priority=1)), list[Welcome])
    assert_type(enqueued_sync(send_email), list[Welcome])
    assert_type(await assert_enqueued(send_email, user_id=1), list[Job])
    assert_type(await assert_enqueued(send_email, Welcome(user_id=1), times=2, queue="mail"), list[Job])
    await assert_enqueued(send_email, lambda payload: payload.user_id > 1)
    await assert_enqueued(post, {"to": "x"}, due_before=timedelta(hours=1))
    await assert_enqueued(add, a=1, due_after=datetime.now(UTC))
    await assert_enqueued(add, fields={"a": 1}, times=1)
    await assert_not_enqueued(add, a=1)
    assert_enqueued_sync(send_email, Welcome(user_id=1))
    report = await drain(jobs, queues=["mail"], concurrency=4, max_jobs=10, timeout=5, raise_errors=False)
    assert_type(report, DrainReport)
    assert_type(report.failed, tuple[Ran, ...])
    assert_type(report.counts, dict[str, int])
    assert_type(drain_sync(jobs), DrainReport)
    await advance(jobs, timedelta(hours=1), minutes=2.5)
    with inline(jobs) as done, fail_attempt(send_email, 1, error) as hit:
        assert_type(done.payloads(send_email), list[Welcome])
        assert_type(done.payloads(add), list[dict[str, object]])
        assert_type(hit, list[Job])
    async with lose_worker(jobs.worker(queues=None)) as lost:
        assert_type(lost, list[Ran])
    assert_type(await drop_connections(jobs), int)


async def wrong() -> None:
    repr((await enqueued(send_email))[0].nope)  # E
    await assert_enqueued(send_email, Other(user_id=1))  # E
    await assert_enqueued(send_email, lambda payload: payload.nope)  # E
    await assert_enqueued(send_email, Welcome(user_id=1), user_id=1)  # E
    await assert_enqueued(send_email, user_id=1, times="1")  # E
    await assert_enqueued(send_email, due_after=3)  # E
    await assert_enqueued(add, 1)  # E
    await assert_enqueued(jobs)  # E
    await assert_not_enqueued(send_email, Welcome(user_id=1), times=1)  # E
    await drain(send_email)  # E
    await drain(jobs, max_job=1)  # E
    await advance(jobs, weeks=1)  # E
    await advance(jobs, 3)  # E
    with fail_attempt(send_email, "1", ValueError()):  # E
        pass
    async with lose_worker(jobs):  # E
        pass
