"""Assertions about what was deferred, and what they say when it was not."""

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from pqrun import App, ArgumentsError, JobContext, PayloadError
from pqrun.testing import (
    assert_enqueued,
    assert_enqueued_sync,
    assert_not_enqueued,
    assert_not_enqueued_sync,
    drain,
    enqueued,
    enqueued_sync,
)
from tests.support.database import run
from tests.testing.shop import Shop, Welcome


async def test_enqueued_gives_models_to_compare_with(shop: Shop) -> None:
    async with shop.jobs:
        assert await enqueued(shop.send_email) == []
        await shop.send_email.defer(user_id=1)
        await shop.send_email.options(queue="mail", run_after=timedelta(hours=1)).defer(user_id=2)
        await shop.pay.defer(order=1)
        assert await enqueued(shop.send_email) == [Welcome(user_id=1), Welcome(user_id=2)]
        assert await enqueued(shop.send_email, queue="mail") == [Welcome(user_id=2)]
        assert await enqueued(shop.pay) == [{"order": 1}]


async def test_fields_are_a_partial_match_and_the_jobs_are_returned(shop: Shop) -> None:
    async with shop.jobs:
        first = await shop.send_email.defer(user_id=1)
        await shop.send_email.defer(user_id=2, template="other")
        (found,) = await assert_enqueued(shop.send_email, user_id=1)
        assert (found.id, found.payload) == (first.id, {"user_id": 1, "template": "welcome"})
        assert len(await assert_enqueued(shop.send_email)) == 2
        await assert_enqueued(shop.send_email, template="other", user_id=2, times=1)
        await assert_not_enqueued(shop.send_email, user_id=1, template="other")


async def test_a_whole_model_and_a_function_of_it_are_taken_too(shop: Shop) -> None:
    async with shop.jobs:
        await shop.send_email.defer(user_id=1)
        await assert_enqueued(shop.send_email, Welcome(user_id=1), times=1)
        await assert_enqueued(shop.send_email, lambda payload: payload.user_id < 2)
        await assert_not_enqueued(shop.send_email, Welcome(user_id=1, template="other"))
        await assert_not_enqueued(shop.send_email, lambda payload: payload.user_id > 1)


async def test_a_failure_shows_what_waits_instead_with_the_difference(shop: Shop) -> None:
    async with shop.jobs:
        await shop.send_email.defer(user_id=2)
        await shop.pay.defer(order=1)
        await shop.pay.defer(order=2)
        with pytest.raises(AssertionError) as caught:
            await assert_enqueued(shop.send_email, user_id=1, queue="mail")
        assert str(caught.value).splitlines() == [
            "no waiting jobs of send_email with user_id=1, queue='mail'; 1 of it waiting",
            """  id=1 queue='default' due {"user_id": 2, "template": "welcome"}""",
            "    user_id: 2, expected 1",
            "    queue: 'default', expected 'mail'",
            "  of other tasks: pay (2)",
        ]
        with pytest.raises(AssertionError, match='template: "welcome", expected "other"'):
            await assert_enqueued(shop.send_email, Welcome(user_id=2, template="other"))
        with pytest.raises(
            AssertionError, match=r"what the function says; 1 of it waiting\n.*\n    the function says no"
        ):
            await assert_enqueued(shop.send_email, lambda payload: False)
        with pytest.raises(AssertionError, match=r"2 waiting jobs of pay \(expected 1\)"):
            await assert_enqueued(shop.pay, times=1)
        with pytest.raises(AssertionError, match=r"1 waiting job of send_email with user_id=2, expected none\n  id=1 "):
            await assert_not_enqueued(shop.send_email, user_id=2)


async def test_an_unknown_field_and_a_value_that_defer_would_refuse_are_errors_not_misses(shop: Shop) -> None:
    async with shop.jobs:
        with pytest.raises(ArgumentsError, match="Welcome has no field 'user'; it has user_id, template"):
            await assert_not_enqueued(shop.send_email, user=1)
        with pytest.raises(PayloadError, match="user_id"):
            await assert_not_enqueued(shop.send_email, user_id="one")
        with pytest.raises(ArgumentsError, match="not several of them"):
            await assert_enqueued(shop.send_email, Welcome(user_id=1), user_id=1)  # type: ignore[call-overload]  # wrong on purpose
        with pytest.raises(ArgumentsError, match="has no field 'orders'; it has order"):
            await assert_enqueued(shop.pay, orders=1)


async def test_values_are_read_as_defer_reads_them_and_aliases_are_known(dsn: str) -> None:
    jobs = App(dsn=dsn)

    class Order(BaseModel):
        id: uuid.UUID
        when: datetime = Field(alias="orderedAt")

    @dataclass
    class Ping:
        host: str

    class Mail(TypedDict):
        to: str

    @jobs.task(payload=Order)
    async def order(ctx: JobContext, payload: Order) -> None: ...

    @jobs.task
    async def ping(ctx: JobContext, target: Ping) -> None: ...

    @jobs.task(payload=Mail)
    async def post(ctx: JobContext, payload: Mail) -> None: ...

    number, now = uuid.uuid4(), datetime(2026, 1, 2, tzinfo=UTC)
    async with jobs:
        await order.defer(id=number, orderedAt=now)
        await ping.defer(Ping("h"))
        await post.defer({"to": "a"})
        await assert_enqueued(order, id=str(number), orderedAt="2026-01-02T00:00:00Z")
        await assert_enqueued(order, id=number, when=now)
        await assert_enqueued(ping, host="h")
        assert await enqueued(ping) == [{"target": Ping("h")}]
        await assert_enqueued(post, {"to": "a"})
        await assert_enqueued(post, to="a")


async def test_the_time_at_which_it_is_due_can_be_asked_for(shop: Shop) -> None:
    when = datetime.now(UTC) + timedelta(days=3)
    async with shop.jobs:
        await shop.pay.options(run_after=timedelta(hours=1)).defer(order=1)
        await shop.pay.options(run_after=when).defer(order=2)
        await assert_enqueued(shop.pay, order=1, due_after=timedelta(minutes=59), due_before=timedelta(hours=1))
        await assert_enqueued(shop.pay, order=2, due_after=when, due_before=when)
        await assert_not_enqueued(shop.pay, due_before=timedelta(0))
        with pytest.raises(
            AssertionError, match=r"order=1, due_before=.*\n.*\n    due at .*, expected not after 0:30:00"
        ):
            await assert_enqueued(shop.pay, order=1, due_before=timedelta(minutes=30))
        with pytest.raises(ArgumentsError, match="due_after takes an aware datetime"):
            await assert_enqueued(shop.pay, due_after=datetime(2026, 1, 1))  # noqa: DTZ001


async def test_a_field_with_the_name_of_an_option_is_told_apart(dsn: str) -> None:
    jobs = App(dsn=dsn)

    @jobs.task
    async def route(ctx: JobContext, queue: str) -> None: ...

    async with jobs:
        await route.options(queue="a").defer(queue="b")
        with pytest.raises(ArgumentsError, match=r"give the field as fields=\{'queue': ...\}"):
            await assert_enqueued(route, queue="b")
        await assert_enqueued(route, fields={"queue": "b"})
        await assert_enqueued(route, fields={"queue": "b"}, queue="a")
        await assert_not_enqueued(route, fields={"queue": "a"})


async def test_jobs_that_have_run_do_not_wait(shop: Shop) -> None:
    async with shop.jobs:
        await shop.pay.defer(order=1)
        await drain(shop.jobs)
        await assert_not_enqueued(shop.pay)


def test_sync_tests_look_without_an_open_app(dsn_for_loops: str) -> None:
    shop = Shop(dsn_for_loops)

    async def sign_up() -> None:
        async with shop.jobs:
            await shop.send_email.defer(user_id=1)

    run(sign_up())
    assert [job.id for job in assert_enqueued_sync(shop.send_email, user_id=1)] == [1]
    assert_enqueued_sync(shop.send_email, Welcome(user_id=1), times=1)
    assert_not_enqueued_sync(shop.send_email, user_id=2)
    assert enqueued_sync(shop.send_email) == [Welcome(user_id=1)]
