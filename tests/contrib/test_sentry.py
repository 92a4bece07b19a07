"""Failures of real workers as events of the real SDK, whose transport is the test's own."""

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from pqrun import Abort, App, JobContext, RetryAfter, Snooze
from pqrun.contrib.sentry import instrument
from pqrun.testing import drain
from tests.run.working import AtOnce

SECRET = "hunter2"
DSN = "http://key@localhost/1"


class Kept(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.sent += [json.loads(item.get_bytes()) for item in envelope.items if item.type in ("event", "transaction")]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [one for one in self.sent if one.get("type") != "transaction"]

    @property
    def transactions(self) -> list[dict[str, Any]]:
        return [one for one in self.sent if one.get("type") == "transaction"]


@pytest.fixture
def sentry() -> Iterator[Kept]:
    kept = Kept()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(
            dsn=DSN, transport=kept, traces_sample_rate=1.0, default_integrations=True, auto_enabling_integrations=False
        )
        logging.getLogger("pqrun").setLevel(logging.INFO)
        yield kept
        sentry_sdk.get_client().close(timeout=0)
    scope = sentry_sdk.get_global_scope()
    scope.set_client(None)
    scope.clear()
    logging.getLogger("pqrun").setLevel(logging.NOTSET)


def error_of(event: dict[str, Any]) -> tuple[str, str]:
    last = event["exception"]["values"][-1]
    return last["type"], last["value"]


async def test_each_failed_attempt_is_an_event_with_its_job_and_without_its_payload(dsn: str, sentry: Kept) -> None:
    jobs = App(dsn=dsn)
    instrument(jobs)

    @jobs.task(queue="mail", max_attempts=2, backoff=AtOnce())
    async def send(ctx: JobContext, token: str) -> None:
        address = f"{token}@example.org"
        raise LookupError(f"no such card as of {len(address)}")

    async with jobs:
        job = await send.defer(token=SECRET)
        await drain(jobs, raise_errors=False)
    assert [error_of(event)[0] for event in sentry.events] == ["LookupError", "LookupError"]
    first, second = sentry.events
    assert (first["tags"]["pqrun.attempt"], second["tags"]["pqrun.attempt"]) == ("1", "2")
    assert first["tags"]["pqrun.job_type"] == "send"
    assert (first["tags"]["pqrun.queue"], first["tags"]["pqrun.job_id"]) == ("mail", str(job.id))
    assert first["fingerprint"] == ["{{ default }}", "pqrun:send"]
    assert first["transaction"] == "send"
    assert first["exception"]["values"][-1]["mechanism"] == {"type": "pqrun", "handled": False}
    assert SECRET not in json.dumps(sentry.sent)


async def test_payloads_are_sent_where_that_is_asked_for(dsn: str, sentry: Kept) -> None:
    jobs = App(dsn=dsn)
    instrument(jobs, payloads=True)

    @jobs.task(max_attempts=1)
    async def send(ctx: JobContext, token: str) -> None:
        raise LookupError

    async with jobs:
        await send.defer(token=SECRET)
        await drain(jobs, raise_errors=False)
    (event,) = sentry.events
    assert event["contexts"]["pqrun job"]["payload"] == {"token": SECRET}


async def test_only_final_failures_where_that_is_asked_for(dsn: str, sentry: Kept) -> None:
    jobs = App(dsn=dsn)
    instrument(jobs, only_final=True)

    @jobs.task(max_attempts=2, backoff=AtOnce())
    async def tries(ctx: JobContext) -> None:
        raise LookupError(f"attempt {ctx.job.attempts}")

    @jobs.task(no_retry_on=KeyError)
    async def ruled(ctx: JobContext) -> None:
        raise KeyError("ruled")

    @jobs.task
    async def aborts(ctx: JobContext) -> None:
        raise Abort("no")

    @jobs.task
    async def later(ctx: JobContext) -> None:
        raise RetryAfter(timedelta(hours=1))

    async with jobs:
        for task in (tries, ruled, aborts, later):
            await task.defer()
        await drain(jobs, raise_errors=False)
    assert sorted(error_of(event)[0] for event in sentry.events) == ["Abort", "KeyError", "LookupError"]
    assert ("LookupError", "attempt 2") in map(error_of, sentry.events)


async def test_a_snooze_is_no_error_and_a_timeout_is_one(dsn: str, sentry: Kept) -> None:
    jobs = App(dsn=dsn)
    instrument(jobs)

    @jobs.task
    async def snoozes(ctx: JobContext) -> None:
        raise Snooze(timedelta(hours=1))

    @jobs.task(timeout=0.05, max_attempts=1)
    async def slow(ctx: JobContext) -> None:
        await asyncio.sleep(3600)

    async with jobs:
        await snoozes.defer()
        await slow.defer()
        await drain(jobs, raise_errors=False)
    (event,) = sentry.events
    assert error_of(event) == ("HandlerTimeout", "slow ran longer than its timeout of 0.05 s")


async def test_what_no_handler_raised_comes_by_the_log(dsn: str, sentry: Kept) -> None:
    jobs = App(dsn=dsn)
    instrument(jobs)

    @jobs.task(max_attempts=1)
    async def strict(ctx: JobContext, n: int) -> None: ...

    async with jobs:
        await jobs.store.enqueue("strict", {"n": SECRET})
        await drain(jobs, raise_errors=False)
    (event,) = sentry.events
    assert "failed strict" in event["logentry"]["formatted"] or "failed strict" in json.dumps(event["logentry"])
    assert SECRET not in json.dumps(sentry.sent)


async def test_the_trace_of_defer_goes_on_in_the_job(dsn: str, sentry: Kept) -> None:
    jobs = App(dsn=dsn)
    instrument(jobs)

    @jobs.task(queue="mail")
    async def t(ctx: JobContext) -> None: ...

    async with jobs:
        with sentry_sdk.start_transaction(name="request") as request:
            await t.defer()
            trace_id = request.trace_id
        await drain(jobs)
    (process,) = [one for one in sentry.transactions if one["transaction"] == "t"]
    traced = process["contexts"]["trace"]
    assert (traced["trace_id"], traced["op"], traced["origin"]) == (trace_id, "queue.process", "auto.queue.pqrun")
    assert traced["data"]["messaging.destination.name"] == "mail"


async def test_scopes_do_not_leak_from_job_to_job(dsn: str, sentry: Kept) -> None:
    jobs = App(dsn=dsn)
    instrument(jobs)

    @jobs.task(max_attempts=1)
    async def t(ctx: JobContext, n: int) -> None:
        sentry_sdk.set_tag("mine", str(n))
        if n == 2:
            raise ValueError

    @jobs.task(max_attempts=1)
    async def other(ctx: JobContext) -> None:
        raise ValueError

    async with jobs:
        await t.defer(n=1)
        await t.defer(n=2)
        await other.defer()
        await drain(jobs, raise_errors=False)
    second, third = sentry.events
    assert (second["tags"]["mine"], "mine" in third["tags"]) == ("2", False)


async def test_without_an_active_client_nothing_is_done_or_stored(dsn: str) -> None:
    jobs = App(dsn=dsn)
    instrument(jobs)

    @jobs.task(max_attempts=1)
    async def t(ctx: JobContext) -> None:
        raise ValueError

    async with jobs:
        job = await t.defer()
        assert (await job.job()).headers == {}
        await drain(jobs, raise_errors=False)
    sentry_sdk.get_global_scope().clear()


def test_without_the_extra_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['sentry_sdk'] = None\nimport pqrun.contrib.sentry"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "pip install 'pqrun[sentry]'" in done.stderr
