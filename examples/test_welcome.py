"""Tests of ``examples/welcome.py``: ``pytest examples/test_welcome.py``, with pytest-asyncio.

The app of the shop stays as it is. Each test has a database of its own, in a PostgreSQL that starts with the session.
"""

from datetime import timedelta

import pytest
from fastapi.testclient import TestClient

from examples.welcome import Sent, Welcome, app, jobs, send_email, sign_up
from pqrun.testing import (
    Bind,
    advance,
    assert_enqueued,
    assert_enqueued_sync,
    assert_not_enqueued,
    drain,
    drain_sync,
    enqueued,
    fail_attempt,
    inline,
)


@pytest.mark.asyncio
async def test_a_new_user_gets_two_emails_a_week_apart(pqrun_bind: Bind) -> None:
    async with pqrun_bind(jobs):
        await sign_up.defer(user_id=7)
        report = await drain(jobs)
        assert report.counts == {"sign_up": 1, "send_email": 1}
        await assert_enqueued(send_email, template="how-is-it", due_after=timedelta(days=6))
        await advance(jobs, days=7)
        assert (await drain(jobs)).counts == {"send_email": 1}
        await assert_not_enqueued(send_email)


@pytest.mark.asyncio
async def test_the_first_email_is_the_welcome(pqrun_bind: Bind) -> None:
    async with pqrun_bind(jobs):
        await send_email.defer(user_id=7)
        assert await enqueued(send_email) == [Welcome(user_id=7)]


@pytest.mark.asyncio
async def test_an_email_that_fails_is_sent_a_minute_later(pqrun_bind: Bind) -> None:
    async with pqrun_bind(jobs):
        job = await send_email.defer(user_id=7)
        with fail_attempt(send_email, 1, ConnectionError("the mail server is away")):
            report = await drain(jobs, raise_errors=False)
        assert [ran.error for ran in report.failed] == ["ConnectionError: the mail server is away"]
        await advance(jobs, minutes=1)
        await drain(jobs)
        assert await job.result(timeout=0) == Sent(message_id="welcome-7")


@pytest.mark.asyncio
async def test_without_a_database() -> None:
    with inline(jobs) as done:
        await sign_up.defer(user_id=7)
    assert done.payloads(send_email) == [Welcome(user_id=7), Welcome(user_id=7, template="how-is-it")]


def test_the_web_application(pqrun_bind: Bind) -> None:
    pqrun_bind(jobs)  # before the lifespan opens it
    with TestClient(app) as client:
        assert client.post("/users/7").json() == {"job": 1}
        assert_enqueued_sync(sign_up, user_id=7)
        assert drain_sync(jobs).counts == {"sign_up": 1, "send_email": 1}
