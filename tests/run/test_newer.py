"""Jobs that need newer code: put aside unread, told of once, and never a hot loop."""

import time
from typing import Any

from pqrun import App
from pqrun.job.outcome import Done, Failed, Snoozed
from pqrun.run import events
from pqrun.run.context import JobContext
from pqrun.run.events import Events
from pqrun.run.handler import Handler
from pqrun.run.newer import LEAST_SECONDS, MOST_SECONDS, RETURNS_PER_SECOND, NewerJobs
from tests.run.making import Bench, make_job
from tests.support.waiting import Recorder


def handler(version: int, **upgrades: Any) -> Handler:
    jobs = App(dsn="postgresql://localhost/never_opened")

    @jobs.task(name="t", version=version, upgrades={int(name[1:]): step for name, step in upgrades.items()})
    async def run(ctx: JobContext, n: int) -> dict[str, int]:
        return {"n": n}

    return run.handler


async def test_a_newer_payload_is_put_aside_unread_even_where_it_would_decode() -> None:
    bench = Bench(handler(2))
    job = make_job(payload_json='{"n": 1}', payload_version=3)
    snoozed = await bench.outcome_of(job, Snoozed)
    assert snoozed.error == (
        "PayloadVersionError: t: the payload has version 3, and this code knows version 2: it needs newer code"
    )
    assert snoozed.delay_seconds >= LEAST_SECONDS
    assert bench.heard.of(events.NeedsNewerCode) == [events.NeedsNewerCode("t", 3, 2, job.id)]


async def test_an_older_payload_is_upgraded_and_run() -> None:
    bench = Bench(handler(3, v1=lambda p: {"n": p["m"]}, v2=lambda p: {"n": p["n"] + 1}))
    done = await bench.outcome_of(make_job(payload_json='{"m": 1}', payload_version=1), Done)
    assert done.result == '{"n":2}'


async def test_a_failed_upgrade_ends_the_job_at_once() -> None:
    bench = Bench(handler(2, v1=lambda p: p["nope"]))
    failed = await bench.outcome_of(make_job(payload_json='{"m": 1}', payload_version=1), Failed)
    assert (
        failed.error == "PayloadDecodeError: t, payload of version 1 for 2: the upgrade from version 1 raised KeyError"
    )


async def test_a_low_level_handler_takes_payloads_of_any_version() -> None:
    async def plain(ctx: JobContext[Any]) -> dict[str, object]:
        return {"version": ctx.job.payload_version}

    bench = Bench(t=plain)
    assert (await bench.outcome_of(make_job(payload_version=7), Done)).result == '{"version":7}'


def test_each_task_and_version_is_told_of_once() -> None:
    stream = Events()
    heard = Recorder(stream)
    newer = NewerJobs(stream)
    for job_id, version in ((1, 3), (2, 3), (3, 4), (4, 3)):
        newer.put_aside(make_job(job_id, payload_version=version), known=2)
    newer.put_aside(make_job(5, job_type="other", payload_version=3), known=2)
    assert [(e.job_type, e.version, e.job_id) for e in heard.of(events.NeedsNewerCode)] == [
        ("t", 3, 1),
        ("t", 4, 3),
        ("other", 3, 5),
    ]


def test_the_first_comes_back_after_a_while_and_a_mass_of_them_spread_out() -> None:
    newer = NewerJobs(Events())
    began = time.monotonic()
    delays = [newer.put_aside(make_job(n), known=0) for n in range(10_000)]
    took = time.monotonic() - began
    assert LEAST_SECONDS <= delays[0] < LEAST_SECONDS + 1
    spread = 10_000 / RETURNS_PER_SECOND
    assert spread - took - 1 <= delays[-1] - LEAST_SECONDS <= spread + 1


def test_no_job_waits_longer_than_the_limit() -> None:
    newer = NewerJobs(Events())
    delays = [newer.put_aside(make_job(1), known=0) for _ in range(int(MOST_SECONDS * RETURNS_PER_SECOND))]
    assert delays[-1] == max(delays) == MOST_SECONDS
