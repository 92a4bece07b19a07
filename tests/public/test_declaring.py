"""Declaring tasks: what a declaration means for the rows that are written, and what is refused where it stands."""

import asyncio
import functools
import inspect
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from pqrun import (
    App,
    ArgumentsError,
    BackoffPolicy,
    ConfigurationError,
    DeclarationError,
    DedupeKeyError,
    DeferError,
    JobContext,
    NotOpenError,
    OptionError,
    PayloadError,
    PgJobStore,
)
from pqrun.job.record import NewJob
from tests.support.jobs import Noted, job_record

CITY = ContextVar("CITY", default="nowhere")


class Welcome(BaseModel):
    user_id: int
    template: str = "welcome"


class Sent(BaseModel):
    message_id: str


class Resize(msgspec.Struct):
    path: str
    width: int = 100


@dataclass
class Ping:
    host: str


class Mail(TypedDict):
    to: str


class EveryTenSeconds(BackoffPolicy):
    def retry_delay(self, attempts: int) -> timedelta:
        return timedelta(seconds=10 * attempts)


@pytest.fixture
def jobs() -> App[None]:
    return App(dsn="postgresql://localhost/never_opened")


def context(store: PgJobStore) -> JobContext[None]:
    job = job_record(job_type="greet")

    async def complete_claim(result: str | None, connection: object) -> None: ...

    def complete_claim_sync(result: str | None, connection: object) -> None: ...

    return JobContext(
        job=job,
        store=store,
        worker_id="w",
        state=None,
        encode=lambda _: None,
        complete_claim=complete_claim,
        complete_claim_sync=complete_claim_sync,
        reports=Noted(),
    )


def payload_of(job: NewJob) -> Any:
    return json.loads(job.payload)


class TestTheWireRule:
    def test_a_declared_model_is_stored_as_its_own_object(self, jobs: App[None]) -> None:
        @jobs.task(payload=Welcome)
        async def send_email(ctx: JobContext, payload: Welcome) -> Sent:
            return Sent(message_id="m")

        by_field, by_instance = send_email.call(user_id=1).job, send_email.call(Welcome(user_id=1)).job
        assert payload_of(by_field) == {"user_id": 1, "template": "welcome"}
        assert by_field == by_instance
        assert by_field.job_type == "send_email"

    @pytest.mark.parametrize("given", [Resize("x"), Ping("h"), Mail(to="x")], ids=["Struct", "dataclass", "TypedDict"])
    def test_an_instance_of_every_kind_of_model_is_taken_whole(self, jobs: App[None], given: object) -> None:
        model: Any = Mail if isinstance(given, dict) else type(given)

        @jobs.task(payload=model)
        async def keep(ctx: JobContext, payload: object) -> None: ...

        assert payload_of(keep.call(given).job) == msgspec.to_builtins(given)

    def test_one_annotated_model_is_stored_as_its_own_object(self, jobs: App[None]) -> None:
        @jobs.task
        async def send_email(ctx: JobContext, payload: Welcome) -> None: ...

        expected = {"user_id": 1, "template": "welcome"}
        assert payload_of(send_email.call(Welcome(user_id=1)).job) == expected
        assert payload_of(send_email.call(payload=Welcome(user_id=1)).job) == expected

    def test_several_parameters_are_stored_by_their_names(self, jobs: App[None]) -> None:
        @jobs.task
        async def add(ctx: JobContext, a: int, b: int = 2) -> None: ...

        assert payload_of(add.call(1).job) == {"a": 1, "b": 2}
        assert payload_of(add.call(a=1, b=3).job) == {"a": 1, "b": 3}

    def test_a_single_mapping_is_an_argument_and_not_the_payload(self, jobs: App[None]) -> None:
        @jobs.task
        async def count(ctx: JobContext, words: dict[str, int]) -> None: ...

        assert payload_of(count.call({"words": 1}).job) == {"words": {"words": 1}}

    def test_parameters_may_have_any_name(self, jobs: App[None]) -> None:
        @jobs.task
        async def odd(ctx: JobContext, *, self: int, payload: int, args: int, kwargs: int) -> None: ...

        expected = {"self": 1, "payload": 2, "args": 3, "kwargs": 4}
        assert payload_of(odd.call(self=1, payload=2, args=3, kwargs=4).job) == expected

    def test_a_handler_without_parameters_has_an_empty_payload(self, jobs: App[None]) -> None:
        @jobs.task()
        async def sweep(ctx: JobContext) -> None: ...

        assert payload_of(sweep.call().job) == {}


class TestArgumentsThatDoNotFit:
    @pytest.mark.parametrize(
        ("args", "kwargs"),
        [
            ((), {"user_id": 1}),
            ((), {}),
            ((1,), {}),
            (({"user_id": 1},), {}),
            ((Welcome(user_id=1),), {"template": "x"}),
        ],
        ids=["fields", "nothing", "another type", "a dict", "model and field"],
    )
    def test_the_annotated_form_takes_the_model_and_says_so(
        self, jobs: App[None], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        @jobs.task
        async def send_email(ctx: JobContext, payload: Welcome) -> None: ...

        unchecked: Any = send_email
        with pytest.raises(TypeError, match=r"pass Welcome\(\.\.\.\), or declare payload=Welcome") as caught:
            unchecked.call(*args, **kwargs)
        assert isinstance(caught.value, DeferError)

    def test_a_wrong_field_is_named_and_its_value_is_not_shown(self, jobs: App[None]) -> None:
        @jobs.task(payload=Welcome)
        async def send_email(ctx: JobContext, payload: Welcome) -> None: ...

        unchecked: Any = send_email
        with pytest.raises(PayloadError, match="user_id") as caught:
            unchecked.call(user_id="secret-text")
        assert "secret-text" not in str(caught.value)

    def test_a_model_of_another_task_is_refused(self, jobs: App[None]) -> None:
        @jobs.task(payload=Welcome)
        async def send_email(ctx: JobContext, payload: Welcome) -> None: ...

        unchecked: Any = send_email
        with pytest.raises(PayloadError):
            unchecked.call(Sent(message_id="m"))

    def test_an_instance_that_was_spoilt_after_validation_is_refused(self, jobs: App[None]) -> None:
        @jobs.task(payload=Welcome)
        async def send_email(ctx: JobContext, payload: Welcome) -> None: ...

        spoilt = Welcome.model_construct(user_id="many")  # what validation would have refused
        with pytest.raises(PayloadError, match="user_id"):
            send_email.call(spoilt)

    def test_a_handle_needs_an_id(self, jobs: App[None]) -> None:
        @jobs.task
        async def sweep(ctx: JobContext) -> None: ...

        unchecked: Any = sweep
        with pytest.raises(ArgumentsError, match="got str"):
            unchecked.handle("7")
        with pytest.raises(ArgumentsError, match="bigint"):
            sweep.handle(2**63)


class TestOptions:
    def test_declared_options_reach_the_row(self, jobs: App[None]) -> None:
        @jobs.task(name="mail", queue="net", priority=5, max_attempts=2, timeout=timedelta(minutes=5))
        async def send_email(ctx: JobContext, to: str) -> None: ...

        job = send_email.call("x").job
        assert (job.job_type, job.queue, job.priority, job.max_attempts, job.timeout_seconds) == (
            "mail",
            "net",
            5,
            2,
            300,
        )
        assert send_email.name == "mail"

    def test_what_is_not_declared_has_the_documented_default(self, jobs: App[None]) -> None:
        @jobs.task
        async def sweep(ctx: JobContext) -> None: ...

        job = sweep.call().job
        assert (job.queue, job.priority, job.max_attempts, job.timeout_seconds) == ("default", 0, 5, None)
        assert (job.run_after, job.delay_seconds, job.dedupe_key, job.backoff_seconds) == (None, None, None, None)

    def test_options_of_a_call_add_up_and_leave_the_task_as_it_was(self, jobs: App[None]) -> None:
        @jobs.task(queue="net", timeout=5)
        async def sweep(ctx: JobContext) -> None: ...

        job = sweep.options(priority=1, queue="a").options(priority=2, timeout=None).call().job
        assert (job.queue, job.priority, job.timeout_seconds) == ("a", 2, None)
        assert (sweep.call().job.queue, sweep.call().job.priority, sweep.call().job.timeout_seconds) == ("net", 0, 5)

    def test_run_after_is_an_instant_or_a_delay_and_the_last_one_counts(self, jobs: App[None]) -> None:
        @jobs.task
        async def sweep(ctx: JobContext) -> None: ...

        when = datetime(2030, 1, 1, tzinfo=UTC)
        first = sweep.options(run_after=when)
        assert (first.call().job.run_after, first.call().job.delay_seconds) == (when, None)
        second = first.options(run_after=timedelta(minutes=1)).call().job
        assert (second.run_after, second.delay_seconds) == (None, 60)

    def test_the_backoff_of_a_call_is_stored_as_delays_between_its_attempts(self, jobs: App[None]) -> None:
        @jobs.task(max_attempts=4)
        async def sweep(ctx: JobContext) -> None: ...

        chosen = sweep.options(backoff=EveryTenSeconds())
        assert chosen.call().job.backoff_seconds == (10, 20, 30)
        assert chosen.options(max_attempts=2).call().job.backoff_seconds == (10,)
        assert chosen.options(max_attempts=1).call().job.backoff_seconds is None
        many = chosen.options(max_attempts=1000).call().job.backoff_seconds
        assert many is not None
        assert len(many) == 32

    def test_the_declared_backoff_stays_with_the_handler(self, jobs: App[None]) -> None:
        policy = EveryTenSeconds()

        @jobs.task(backoff=policy, queue="net")
        async def sweep(ctx: JobContext) -> None: ...

        assert jobs.handlers["sweep"].backoff is policy
        assert jobs.handlers["sweep"].queue == "net"
        assert sweep.call().job.backoff_seconds is None

    @pytest.mark.parametrize(
        "options",
        [
            {"max_attempts": 0},
            {"max_attempts": "3"},
            {"timeout": 0},
            {"timeout": float("nan")},
            {"priority": 40_000},
            {"queue": ""},
            {"backoff": EveryTenSeconds},
        ],
        ids=lambda options: repr(next(iter(options.items()))),
    )
    def test_an_impossible_option_is_refused_when_declared_and_when_given(
        self, jobs: App[None], options: dict[str, Any]
    ) -> None:
        async def sweep(ctx: JobContext) -> None: ...

        (name,) = options
        with pytest.raises(OptionError, match=name):
            jobs.task(**options)(sweep)
        with pytest.raises(OptionError, match=name):
            jobs.task(sweep).options(**options)

    def test_a_naive_datetime_is_refused(self, jobs: App[None]) -> None:
        @jobs.task
        async def sweep(ctx: JobContext) -> None: ...

        with pytest.raises(OptionError, match="run_after"):
            sweep.options(run_after=datetime(2030, 1, 1))  # noqa: DTZ001  # what is to be refused

    def test_an_unknown_option_is_a_type_error_that_knows_better(self, jobs: App[None]) -> None:
        async def sweep(ctx: JobContext) -> None: ...

        unchecked: Any = jobs
        with pytest.raises(DeclarationError, match="did you mean 'priority'"):
            unchecked.task(prioritty=1)
        with pytest.raises(DeclarationError, match="'run_after'"):
            unchecked.task(run_after=timedelta(1))
        with pytest.raises(TypeError, match="did you mean 'queue'"):
            unchecked.task(sweep).options(que="x")


class TestDedupeKeys:
    def test_a_template_is_filled_from_the_payload(self, jobs: App[None]) -> None:
        @jobs.task(payload=Welcome, dedupe_key="welcome:{user_id}")
        async def send_email(ctx: JobContext, payload: Welcome) -> None: ...

        assert send_email.call(user_id=7).job.dedupe_key == "welcome:7"

    def test_a_template_works_on_parameters_too(self, jobs: App[None]) -> None:
        @jobs.task(dedupe_key="add:{a}:{b}")
        async def add(ctx: JobContext, a: int, b: int = 2) -> None: ...

        assert add.call(1).job.dedupe_key == "add:1:2"

    def test_a_function_gets_the_payload_as_it_is_stored(self, jobs: App[None]) -> None:
        @jobs.task(payload=Welcome, dedupe_key=lambda payload: f"w:{payload.user_id + 1}")
        async def send_email(ctx: JobContext, payload: Welcome) -> None: ...

        assert send_email.call(user_id=7).job.dedupe_key == "w:8"
        loose = Welcome.model_construct(user_id="7")  # is stored, and read back, as a number or refused
        with pytest.raises(PayloadError):
            send_email.call(loose)

    def test_a_function_must_return_text(self, jobs: App[None]) -> None:
        key: Callable[[Welcome], Any] = lambda payload: payload.user_id  # noqa: E731  # a function as users write it

        @jobs.task(payload=Welcome, dedupe_key=key)
        async def send_email(ctx: JobContext, payload: Welcome) -> None: ...

        with pytest.raises(DedupeKeyError, match="must return text; got int"):
            send_email.call(user_id=7)

    def test_a_key_given_with_a_call_is_finished_and_none_means_no_key(self, jobs: App[None]) -> None:
        @jobs.task(payload=Welcome, dedupe_key="welcome:{user_id}")
        async def send_email(ctx: JobContext, payload: Welcome) -> None: ...

        assert send_email.options(dedupe_key="k:{user_id}").call(user_id=7).job.dedupe_key == "k:{user_id}"
        assert send_email.options(dedupe_key=None).call(user_id=7).job.dedupe_key is None

    def test_a_long_key_is_shortened_the_same_way_wherever_it_comes_from(self, jobs: App[None]) -> None:
        @jobs.task(dedupe_key="{text}")
        async def templated(ctx: JobContext, text: str) -> None: ...

        long = "x" * 300
        from_template, given = templated.call(long).job, templated.options(dedupe_key=long).call("y").job
        assert from_template.dedupe_key == given.dedupe_key
        assert 0 < len(given.dedupe_key or "") <= 200

    def test_a_template_of_unknown_fields_is_refused_where_it_is_declared(self, jobs: App[None]) -> None:
        async def add(ctx: JobContext, a: int) -> None: ...

        with pytest.raises(DeclarationError, match=r"aa.*test_declaring\.py:\d+"):
            jobs.task(dedupe_key="{aa}")(add)

    def test_a_function_without_payload_is_refused(self, jobs: App[None]) -> None:
        unchecked: Any = jobs
        with pytest.raises(DeclarationError, match="payload="):
            unchecked.task(dedupe_key=lambda payload: "x")


async def without_annotation(ctx: JobContext, a) -> None: ...  # type: ignore[no-untyped-def]  # what is to be refused
async def without_result(ctx: JobContext, a: int): ...  # type: ignore[no-untyped-def]  # what is to be refused
async def with_int_result(ctx: JobContext) -> int:
    return 1


async def with_list_result(ctx: JobContext) -> list[int]:
    return []


async def without_context(a: int) -> None: ...
async def without_parameters() -> None: ...
async def with_star(ctx: JobContext, *args: int) -> None: ...
async def with_keywords(ctx: JobContext, **kwargs: int) -> None: ...
async def yielding(ctx: JobContext) -> AsyncIterator[None]:
    yield


class Holder:
    async def method(self, ctx: JobContext) -> None: ...

    @classmethod
    async def of_class(cls, ctx: JobContext) -> None: ...

    def __call__(self, ctx: JobContext) -> None: ...


async def __reserved(ctx: JobContext) -> None: ...


RESERVED = __reserved  # outside of a class, which would change the name


class TestRefusedDeclarations:
    @pytest.mark.parametrize(
        ("function", "reason"),
        [
            (without_annotation, "'a' has no annotation"),
            (without_result, "result"),
            (with_int_result, "returns int"),
            (with_list_result, r"returns list\[int\]"),
            (without_context, "ctx"),
            (without_parameters, "ctx"),
            (with_star, r"\*args"),
            (with_keywords, r"\*\*kwargs"),
            (yielding, "yields"),
            (Holder.method, "method cannot be a task"),
            (Holder().method, "got a method"),
            (Holder.of_class, "got a method"),
            (Holder.__dict__["of_class"], "@classmethod above @jobs.task"),
            (Holder, "got a class"),
            (Holder(), "got a Holder"),
            (functools.partial(with_int_result), "got a partial"),
            (RESERVED, "reserved"),
        ],
        ids=lambda value: getattr(value, "__name__", type(value).__name__) if callable(value) else "",
    )
    def test_a_function_that_cannot_be_a_task_is_named_with_its_place(
        self, jobs: App[None], function: Any, reason: str
    ) -> None:
        with pytest.raises(DeclarationError, match=reason) as caught:
            jobs.task(function)
        if inspect.isfunction(function):
            assert f"{function.__qualname__} (test_declaring.py:{function.__code__.co_firstlineno})" in str(
                caught.value
            )
        assert not jobs.handlers

    def test_two_tasks_of_one_name_are_refused_and_both_are_named(self, jobs: App[None]) -> None:
        @jobs.task
        async def sweep(ctx: JobContext) -> None: ...

        async def other(ctx: JobContext) -> None: ...

        with pytest.raises(
            DeclarationError, match=r"'sweep' is taken by .*sweep \(test_declaring.*other \(test_declaring"
        ):
            jobs.task(name="sweep")(other)

    def test_what_is_no_model_is_refused_as_payload(self, jobs: App[None]) -> None:
        async def count(ctx: JobContext, payload: int) -> None: ...

        with pytest.raises(DeclarationError, match=r"int.*test_declaring\.py"):
            jobs.task(payload=int)(count)


class TestRunningTheFunctionItself:
    async def test_an_async_task_is_awaited_with_a_model_or_with_its_fields(self, jobs: App[None]) -> None:
        @jobs.task(payload=Welcome)
        async def greet(ctx: JobContext, payload: Welcome) -> Sent:
            return Sent(message_id=f"{payload.template}-{payload.user_id}")

        ctx = context(jobs.store)
        assert await greet(ctx, Welcome(user_id=1)) == Sent(message_id="welcome-1")
        assert await greet(ctx, user_id=2, template="x") == Sent(message_id="x-2")

    async def test_the_payload_may_be_a_keyword_of_the_function(self, jobs: App[None]) -> None:
        @jobs.task(payload=Welcome)  # type: ignore[arg-type]  # checkers want it by position; at run time both are taken
        async def greet(ctx: JobContext, *, payload: Welcome) -> Sent:
            return Sent(message_id=str(payload.user_id))

        assert await greet(context(jobs.store), Welcome(user_id=1)) == Sent(message_id="1")
        assert await greet(context(jobs.store), user_id=2) == Sent(message_id="2")

    async def test_a_plain_task_runs_in_a_thread_with_the_context_of_its_caller(self, jobs: App[None]) -> None:
        @jobs.task
        def where(ctx: JobContext, n: int) -> dict[str, str]:
            return {"thread": threading.current_thread().name, "city": CITY.get()}

        CITY.set("Rome")
        result = await where(context(jobs.store), 1)
        assert result == {"thread": "pqrun-where", "city": "Rome"}

    async def test_the_parameters_form_is_called_as_the_function_is(self, jobs: App[None]) -> None:
        @jobs.task
        async def add(ctx: JobContext, a: int, *, b: int = 2) -> dict[str, int]:
            return {"total": a + b}

        assert await add(context(jobs.store), 1, b=5) == {"total": 6}

    def test_a_task_looks_like_its_function(self, jobs: App[None]) -> None:
        @jobs.task
        async def add(ctx: JobContext, a: int) -> None:
            """Adds."""

        assert (add.__doc__, getattr(add, "__name__", None)) == ("Adds.", "add")
        assert list(inspect.signature(add).parameters) == ["ctx", "a"]
        assert repr(add).startswith("<Task 'add': TestRunning")


class TestWhatAWorkerGets:
    async def test_a_handler_decodes_calls_and_encodes(self, jobs: App[None]) -> None:
        @jobs.task(payload=Welcome)
        async def greet(ctx: JobContext, payload: Welcome) -> Sent:
            return Sent(message_id=f"m-{payload.user_id}")

        handler = jobs.handlers["greet"]
        outcome = handler.call(context(jobs.store), handler.decode(greet.call(user_id=3).job.payload))
        assert isinstance(outcome, Awaitable)
        assert handler.is_async
        assert json.loads(handler.encode(await outcome) or "") == {"message_id": "m-3"}

    def test_parameters_come_back_as_arguments(self, jobs: App[None]) -> None:
        @jobs.task
        def add(ctx: JobContext, a: int, /, b: int = 2, *, c: int) -> dict[str, int]:
            return {"total": a + b + c}

        handler = jobs.handlers["add"]
        assert not handler.is_async
        assert handler.call(context(jobs.store), handler.decode(add.call(1, c=4).job.payload)) == {"total": 7}

    async def test_a_plain_wrapper_around_an_async_function_is_awaited(self, jobs: App[None]) -> None:
        def logged(
            function: Callable[[JobContext, int], Awaitable[None]],
        ) -> Callable[[JobContext, int], Awaitable[None]]:
            @functools.wraps(function)
            def wrapper(ctx: JobContext, a: int) -> Awaitable[None]:
                return function(ctx, a)

            return wrapper

        @jobs.task
        @logged
        async def sweep(ctx: JobContext, a: int) -> None: ...

        assert jobs.handlers["sweep"].is_async
        await sweep(context(jobs.store), 1)

    def test_the_view_of_the_handlers_shows_what_is_declared_later(self, jobs: App[None]) -> None:
        seen = jobs.handlers

        @jobs.task
        async def late(ctx: JobContext) -> None: ...

        assert list(seen) == ["late"]


class TestTheApp:
    def test_an_app_without_dsn_can_be_made_and_says_what_it_needs_when_used(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("PQRUN_DSN", raising=False)
        monkeypatch.delenv("DATABASE_URL", raising=False)
        jobs = App()
        with pytest.raises(ConfigurationError, match=r"PQRUN_DSN.*DATABASE_URL"):
            jobs.store  # noqa: B018  # the access is the act
        monkeypatch.setenv("DATABASE_URL", "postgresql+asyncpg://localhost/late")
        assert jobs.store is jobs.store

    def test_ways_that_exclude_each_other_are_refused(self, jobs: App[None]) -> None:
        with pytest.raises(ConfigurationError, match="dsn= and store="):
            App(dsn="postgresql://localhost/x", store=jobs.store)
        with pytest.raises(ConfigurationError, match="schema"):
            App(store=jobs.store, schema="other")

    def test_resources_that_were_called_already_are_refused(self) -> None:
        @asynccontextmanager
        async def open_resources() -> AsyncIterator[int]:
            yield 1

        called: Any = open_resources()
        with pytest.raises(ConfigurationError, match="resources="):
            App(resources=called)

    async def test_deferring_before_opening_shows_both_ways_to_open(self, jobs: App[None]) -> None:
        @jobs.task
        async def sweep(ctx: JobContext) -> None: ...

        for attempt in (sweep.defer(), jobs.defer_many([sweep.call()]), sweep.handle(1).status()):
            with pytest.raises(NotOpenError, match=r"async with jobs.*lifespan=jobs\.lifespan"):
                await attempt

    async def test_an_open_app_is_one_store_however_often_it_is_entered(self, jobs: App[None]) -> None:
        async with jobs, jobs.lifespan(object()):
            assert jobs.store.is_open
            async with jobs:
                pass
            assert jobs.store.is_open
        assert not jobs.store.is_open

    async def test_openings_at_the_same_time_do_not_disturb_each_other(self, jobs: App[None]) -> None:
        opened = asyncio.Barrier(3)

        async def use() -> None:
            async with jobs:
                await opened.wait()
                assert jobs.store.is_open

        await asyncio.gather(use(), use(), use())
        assert not jobs.store.is_open

    def test_an_app_can_be_opened_in_one_loop_after_another(self, jobs: App[None]) -> None:
        async def use() -> bool:
            async with jobs:
                return jobs.store.is_open

        assert asyncio.run(use())
        assert asyncio.run(use())

    async def test_a_store_that_its_owner_opened_stays_open(self, jobs: App[None]) -> None:
        async with jobs.store:
            async with App(store=jobs.store):
                pass
            assert jobs.store.is_open


class TestBatches:
    async def test_what_is_no_call_is_refused_with_its_index(self, jobs: App[None]) -> None:
        @jobs.task
        async def sweep(ctx: JobContext) -> None: ...

        mixed: Any = [sweep.call(), Welcome(user_id=1)]
        with pytest.raises(ArgumentsError, match=r"item 1 must be task\.call"):
            await jobs.defer_many(mixed)

    async def test_a_call_with_a_connection_of_its_own_is_refused_with_its_index(self, jobs: App[None]) -> None:
        @jobs.task
        async def sweep(ctx: JobContext) -> None: ...

        connection: Any = object()
        with pytest.raises(ArgumentsError, match=r"item 1 carries a connection.*give connection= to defer_many"):
            await jobs.defer_many([sweep.call(), sweep.options(connection=connection).call()])
