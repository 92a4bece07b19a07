"""What a person reads in the log while the database is away: one warning of each duty, not one of each try."""

import logging
import signal
import time
from collections import Counter
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from pqrun.run import events
from pqrun.store import PgJobStore
from tests.faults.counted import Counted, assert_done_once, enqueued
from tests.faults.serving import serving
from tests.run.working import wait_finished, working
from tests.support.proxy import proxied
from tests.support.waiting import wait_until

TRIES_PER_SECOND = 20
"""More attempts to connect would be a hot loop."""

DUTIES_MOST = 7
"""Loops of a worker that speak to the database, each of which warns of a loss once."""


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """The lines of this level and above, whoever wrote them."""
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


def warned(caplog: pytest.LogCaptureFixture) -> Counter[str]:
    """Which duty warned how often."""
    return Counter(line.split(" met an error (1 in a row)")[0] for line in said(caplog, logging.WARNING))


async def test_an_outage_of_eight_seconds_is_one_warning_of_each_duty_and_a_line_when_it_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted = Counted()
    async with serving() as server, PgJobStore(server.dsn) as store:
        handlers = {"t": counted.quick, "hang": counted.hang}
        async with working(PgJobStore(server.dsn), handlers, concurrency=3) as crew:
            await crew.heard.wait_for(events.WorkerStarted)
            running = [await store.enqueue("hang", {}) for _ in range(2)]
            for job_id in running:
                await counted.wait_started(job_id)
            with caplog.at_level(logging.DEBUG):
                since = time.monotonic()
                await server.end(signal.SIGQUIT)
                await wait_until(lambda: time.monotonic() - since > 4)
                counted.go.set()  # from now on there is something to settle, too
                await wait_until(lambda: time.monotonic() - since > 8)
                await server.start()
                ended = [await wait_finished(store, job_id) for job_id in running]
                ended.append(await wait_finished(store, await enqueued(store)))
                await wait_until(lambda: {e.duty for e in crew.heard.of(events.LoopResumed)} >= {*warned(caplog)})
            failures = crew.heard.of(events.LoopFailed)
    assert_done_once(ended, counted)
    losses = warned(caplog)
    assert set(losses) >= {"keep", "fetch", "settle", "reap"}
    assert set(losses.values()) == {1}, losses
    assert len(losses) <= DUTIES_MOST
    retries = [line for line in said(caplog, logging.INFO) if " met an error" in line]
    assert len(retries) <= 2 * len(losses) < len(failures)  # a retry that says something new is a line, at INFO
    assert [line for line in said(caplog, logging.INFO) if line.startswith("keep goes on")]


async def test_a_listening_connection_that_is_killed_is_one_warning_each_time(
    dsn: str, connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    counted = Counted()
    async with PgJobStore(dsn) as store, working(PgJobStore(dsn), {"t": counted.quick}) as crew:
        await crew.heard.wait_for(events.WorkerStarted)
        with caplog.at_level(logging.DEBUG):
            for times in (1, 2):
                await connection.fetch(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pqrun keeper'"
                )
                resumed = await crew.heard.wait_for(events.LoopResumed, count=times)
                assert (resumed.duty, warned(caplog)) == ("keep", Counter(keep=times))
        assert_done_once([await wait_finished(store, await store.enqueue("t", {}))], counted)


async def test_a_direct_dsn_that_is_refused_is_named_once_and_tried_calmly_until_it_is_let_in(
    dsn: str, connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    counted = Counted()
    role = "refused_" + urlsplit(dsn).path[1:]
    await connection.execute(f"CREATE ROLE {role} SUPERUSER NOLOGIN")
    try:
        async with asyncpg.create_pool(dsn, min_size=0, max_size=6) as pool, proxied(dsn) as proxy:
            parts = urlsplit(proxy.dsn)
            direct = urlunsplit(parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}"))
            since = time.monotonic()
            async with PgJobStore(pool=pool) as store, working(store, {"t": counted.quick}, direct_dsn=direct) as crew:
                await crew.heard.wait_for(events.LoopFailed, count=8)
                assert proxy.most_tries_per_second(since) < TRIES_PER_SECOND
                assert not crew.heard.of(events.WorkerStarted)
                (line,) = said(caplog, logging.INFO)
                await connection.execute(f"ALTER ROLE {role} LOGIN")
                assert_done_once([await wait_finished(store, await store.enqueue("t", {}))], counted)
    finally:
        await connection.execute(f"DROP ROLE {role}")
    assert "keep met an error" in line
    assert ": direct_dsn=: cannot connect to " in line
    assert "not permitted to log in" in line
