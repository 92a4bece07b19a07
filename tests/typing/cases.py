"""More than the contract asks: what else users write must type-check, and what else must not.

A line that ends in `# E` must be reported by both checkers; no other line may be reported.
The file is checked, never run.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, TypeVar, assert_type
from typing import TypedDict as StandardTypedDict

import asyncpg
import msgspec
import psycopg
from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from pqrun import (
    Abort,
    App,
    BackoffPolicy,
    BulkProgress,
    BulkReport,
    Call,
    CallNext,
    CancelOutcome,
    CheckReport,
    Connection,
    Deferral,
    ExponentialBackoff,
    HandlerTimeout,
    Histogram,
    Job,
    JobContext,
    JobFilter,
    JobHandle,
    JobSelection,
    JsonObject,
    JsonValue,
    PgJobStore,
    Preview,
    Progress,
    RefusalReason,
    RetryAfter,
    Schedule,
    ScheduleDefinition,
    Selection,
    Snooze,
    StatisticsRow,
    Status,
    Task,
    Vitals,
    Worker,
)
from tests.typing import other_module
from tests.typing.other_module import Kept, keep

jobs = App()


class User(BaseModel):
    user_id: int


class UserWithNote(User):
    note: str = ""


class Sent(BaseModel):
    message_id: str


class Aliased(BaseModel):
    user_id: int = Field(alias="userId")


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    item: T


@pydantic_dataclass
class Checked:
    x: int


@dataclass(frozen=True)
class Point:
    x: int
    y: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    a: int
    b: list[int] = []


class Counted(StandardTypedDict):
    a: int


# payload models and results of every kind


@jobs.task(payload=UserWithNote)
async def optional_result(ctx: JobContext, payload: UserWithNote) -> Sent | None:
    return None


@jobs.task(payload=UserWithNote)
async def takes_a_base(ctx: JobContext, payload: User) -> Sent:
    return Sent(message_id="m")


@jobs.task(payload=User)  # E
async def takes_a_derived(ctx: JobContext, payload: UserWithNote) -> Sent:
    return Sent(message_id="m")


@jobs.task(payload=Box[int])
async def boxed(ctx: JobContext, payload: Box[int]) -> Box[str]:
    return Box[str](item="x")


@jobs.task(payload=Box[int])  # E
async def wrong_box(ctx: JobContext, payload: Box[str]) -> None: ...


@jobs.task(payload=Checked)
async def checked(ctx: JobContext, payload: Checked) -> Checked:
    return payload


@jobs.task(payload=Point)
async def point(ctx: JobContext, payload: Point) -> Point:
    return payload


@jobs.task(payload=Row)
async def row(ctx: JobContext, payload: Row) -> Row:
    return payload


@jobs.task(payload=Counted)
async def counted(ctx: JobContext, payload: Counted) -> Counted:
    return payload


@jobs.task(payload=Aliased)
async def aliased(ctx: JobContext, payload: Aliased) -> Mapping[str, int]:
    return {}


# the function's own parameters


@jobs.task()
async def empty_parentheses(ctx: JobContext, a: int) -> dict[str, Any]:
    return {}


@jobs.task
def plain_function(ctx: JobContext, a: int, *, flag: bool = False) -> Sent:
    return Sent(message_id="m")


@jobs.task(queue="q")
def plain_with_options(ctx: JobContext, a: int, when: datetime | None = None) -> None: ...


@jobs.task
async def without_payload(ctx: JobContext) -> None: ...


@jobs.task(backoff=BackoffPolicy(), name="x", priority=-3, timeout=0.5)
async def with_all_options(ctx: JobContext, items: list[uuid.UUID]) -> None: ...


@jobs.task
async def two_models(ctx: JobContext, user: User, point: Point) -> None: ...


@jobs.task
async def model_or_none(ctx: JobContext, user: User | None = None) -> None: ...


def logged(
    function: Callable[[JobContext, User], Awaitable[Sent]],
) -> Callable[[JobContext, User], Awaitable[Sent]]:
    return function


@jobs.task(payload=User)
@logged
async def decorated(ctx: JobContext, payload: User) -> Sent:
    return Sent(message_id="m")


# dedupe keys


@jobs.task(payload=User, dedupe_key=lambda payload: payload.nope)  # E
async def key_of_no_field(ctx: JobContext, payload: User) -> None: ...


@jobs.task(payload=User, dedupe_key=lambda payload: payload.user_id)  # E
async def key_that_is_no_text(ctx: JobContext, payload: User) -> None: ...


@jobs.task(payload=Row, dedupe_key=lambda payload: str(payload.a))
async def key_of_a_struct(ctx: JobContext, payload: Row) -> None: ...


def key_of_user(payload: User) -> str:
    return f"user:{payload.user_id}"


@jobs.task(payload=UserWithNote, dedupe_key=key_of_user)
async def key_of_a_base(ctx: JobContext, payload: UserWithNote) -> None: ...


@jobs.task(payload=Row, dedupe_key=key_of_user)  # E
async def key_of_another_model(ctx: JobContext, payload: Row) -> None: ...


@jobs.task(dedupe_key=lambda payload: "x")  # E
async def key_function_without_payload(ctx: JobContext, payload: User) -> None: ...


# options that are none, or of a wrong type


@jobs.task(max_attempts="5")  # E
async def attempts_as_text(ctx: JobContext, a: int) -> None: ...


@jobs.task(payload=User, max_attempts="5")  # E
async def attempts_as_text_with_payload(ctx: JobContext, payload: User) -> None: ...


@jobs.task(prio=5)  # E
async def unknown_option(ctx: JobContext, a: int) -> None: ...


@jobs.task(payload=User, timeout="5")  # E
async def timeout_as_text(ctx: JobContext, payload: User) -> None: ...


@jobs.task(
    retry_on=OSError, no_retry_on=(FileNotFoundError, HandlerTimeout), backoff=ExponentialBackoff(2, jitter="full")
)
async def with_rules(ctx: JobContext, path: str) -> Sent:
    if not path:
        raise Snooze(timedelta(minutes=1), "not yet")
    if path == "late":
        raise RetryAfter(timedelta(minutes=1))
    raise Abort("no such path")  # and no value is missing


@jobs.task(
    payload=User,
    retry_on=(SystemExit,),
    backoff=ExponentialBackoff(timedelta(seconds=1), factor=3, cap=60.0, jitter=0.2),
)
def plain_with_rules(ctx: JobContext, payload: User) -> None: ...


async def choosing() -> None:
    assert_type(await with_rules.defer(path="x"), JobHandle[Sent])
    assert_type(await plain_with_rules.defer(user_id=1), JobHandle[None])
    assert_type(Snooze(timedelta(0)).delay_seconds, float)
    assert_type(Abort("x").reason, str)
    assert_type(RetryAfter(timedelta(0)).reason, str | None)
    Snooze(60)  # E
    Snooze()  # E
    RetryAfter("1 min")  # E
    Abort()  # E
    Abort(7)  # E
    ExponentialBackoff(jitter="half")  # E
    ExponentialBackoff(1, 2)  # E
    with_rules.options(retry_on=OSError)  # E


@jobs.task(retry_on="ValueError")  # E
async def rules_by_name(ctx: JobContext) -> None: ...


@jobs.task(no_retry_on=[ValueError])  # E
async def rules_in_a_list(ctx: JobContext) -> None: ...


@jobs.task(retry_on=int)  # E
async def rules_of_no_exception(ctx: JobContext) -> None: ...


@jobs.task(payload=User, backoff=BackoffPolicy)  # E
async def backoff_as_a_class(ctx: JobContext, payload: User) -> None: ...


@jobs.task(payload=User, run_after=timedelta(1))  # E
async def call_option_declared(ctx: JobContext, payload: User) -> None: ...


# handlers of the wrong form


@jobs.task(payload=User)  # E
async def text_result(ctx: JobContext, payload: User) -> str:
    return ""


@jobs.task(payload=User)  # E
def list_result(ctx: JobContext, payload: User) -> list[int]:
    return []


@jobs.task(queue="x")  # E
async def optional_int_result(ctx: JobContext, payload: User) -> int | None:
    return None


@jobs.task  # E
def bytes_result(ctx: JobContext, payload: User) -> bytes:
    return b""


@jobs.task  # E
async def keys_that_are_no_text(ctx: JobContext, a: int) -> dict[int, str]:
    return {}


@jobs.task(payload=User)  # E
async def payload_without_context(payload: User) -> None: ...


@jobs.task(queue="x")  # E
async def nothing_at_all() -> None: ...


@jobs.task(payload=User)  # E
async def context_without_payload(ctx: JobContext) -> None: ...


@jobs.task(payload=User)  # E
async def more_than_the_payload(ctx: JobContext, payload: User, more: int) -> None: ...


# tasks as attributes


class Tasks:
    keep = keep

    def __init__(self) -> None:
        self.mine = optional_result


async def calls_that_fit(tasks: Tasks, connection: Connection, when: datetime) -> None:
    assert_type(await keep.defer(text="x"), JobHandle[Kept])
    assert_type(await keep.find(1), Job | None)
    assert_type(await other_module.keep.defer(text="x"), JobHandle[Kept])
    assert_type(await tasks.keep.defer(text="x"), JobHandle[Kept])
    assert_type(await Tasks.keep.defer(text="x"), JobHandle[Kept])
    assert_type(await tasks.mine.defer(user_id=1), JobHandle[Sent | None])
    assert_type(await (await optional_result.defer(user_id=1)).result(), Sent | None)
    assert_type(await (await keep.defer(text="x")).result(timeout=timedelta(seconds=1)), Kept)
    assert_type(await takes_a_base.defer(user_id=1, note="x"), JobHandle[Sent])
    assert_type(await boxed.defer(item=1), JobHandle[Box[str]])
    assert_type(await boxed.defer(Box[int](item=1)), JobHandle[Box[str]])
    assert_type(await checked.defer(x=1), JobHandle[Checked])
    assert_type(await checked.defer(1), JobHandle[Checked])
    assert_type(await point.defer(1, y="x"), JobHandle[Point])
    assert_type(await row.defer(a=1), JobHandle[Row])
    assert_type(await counted.defer({"a": 1}), JobHandle[Counted])
    assert_type(await counted.defer(Counted(a=1)), JobHandle[Counted])
    assert_type(await aliased.defer(userId=3), JobHandle[Mapping[str, int]])
    assert_type(await empty_parentheses.defer(a=1), JobHandle[dict[str, Any]])
    assert_type(await plain_function.defer(1, flag=True), JobHandle[Sent])
    assert_type(await plain_with_options.defer(1, when), JobHandle[None])
    assert_type(await without_payload.defer(), JobHandle[None])
    assert_type(without_payload.call(), Call[None])
    assert_type(await two_models.defer(User(user_id=1), point=Point(1)), JobHandle[None])
    assert_type(await model_or_none.defer(), JobHandle[None])
    assert_type(await decorated.defer(user_id=1), JobHandle[Sent])
    await with_all_options.defer([uuid.uuid4()])


def synchronous_calls_that_fit(tasks: Tasks, when: datetime) -> None:
    assert_type(keep.defer_sync(text="x"), JobHandle[Kept])
    assert_type(other_module.keep.defer_sync(text="x"), JobHandle[Kept])
    assert_type(tasks.mine.defer_sync(user_id=1), JobHandle[Sent | None])
    assert_type(optional_result.defer_sync(UserWithNote(user_id=1)), JobHandle[Sent | None])
    assert_type(boxed.defer_sync(Box[int](item=1)), JobHandle[Box[str]])
    assert_type(checked.defer_sync(1), JobHandle[Checked])
    assert_type(counted.defer_sync({"a": 1}), JobHandle[Counted])
    assert_type(plain_function.defer_sync(1, flag=True), JobHandle[Sent])
    assert_type(without_payload.defer_sync(), JobHandle[None])
    assert_type(two_models.defer_sync(User(user_id=1), point=Point(1)), JobHandle[None])
    assert_type(keep.options(priority=1, run_after=when).defer_sync(text="x"), JobHandle[Kept])
    assert_type(keep.defer_sync(text="x").result_sync(), Kept)
    assert_type(optional_result.defer_sync(user_id=1).result_sync(timeout=timedelta(seconds=1)), Sent | None)
    assert_type(keep.handle(1).result_sync(timeout=0), Kept)
    assert_type(keep.find_sync(1), Job | None)
    assert_type(jobs.defer_many_sync(boxed.call(item=i) for i in range(3)), list[JobHandle[Box[str]]])
    mixed = jobs.defer_many_sync([keep.call(text="x"), row.call(a=1), counted.call({"a": 1})])
    assert_type(mixed[0].id, int)
    jobs.close_sync()


def synchronous_calls_in_a_transaction(session: Session, psycopg_connection: psycopg.Connection) -> None:
    assert_type(keep.options(connection=session).defer_sync(text="x"), JobHandle[Kept])
    assert_type(keep.options(connection=psycopg_connection).defer_sync(text="x"), JobHandle[Kept])
    assert_type(jobs.defer_many_sync([keep.call(text="x")], connection=session), list[JobHandle[Kept]])
    assert_type(jobs.defer_many_sync([keep.call(text="x")], connection=psycopg_connection), list[JobHandle[Kept]])


def handles_in_synchronous_code(handle: JobHandle[Kept]) -> None:
    assert_type(handle.status_sync(), Status)
    assert_type(handle.job_sync(), Job)
    assert_type(handle.cancel_sync(), CancelOutcome)
    handle.retry_sync(force=True)


async def options_that_fit(connection: Connection, when: datetime) -> None:
    chained = keep.options(connection=connection).options(priority=1, run_after=when).options(dedupe_key=None)
    assert_type(await chained.defer(text="x"), JobHandle[Kept])
    assert_type(keep.options(timeout=None, backoff=BackoffPolicy(), max_attempts=2).call(text="x"), Call[Kept])
    await takes_a_task(keep)
    assert_type(keep.name, str)
    await plain_with_options.options(run_after=timedelta(hours=1), timeout=timedelta(minutes=1)).defer(1)


async def takes_a_task(task: Task[..., Any, Kept, None]) -> None:
    assert_type(await task.defer(1), JobHandle[Kept])


async def takes_wider(handle: JobHandle[BaseModel | None], call: Call[BaseModel | None]) -> None: ...


async def handles_that_fit(handle: JobHandle[Kept]) -> None:
    assert_type(handle.id, int)
    assert_type(await handle.status(), Status)
    assert_type(await handle.job(), Job)
    assert_type(await handle.cancel(), CancelOutcome)
    await handle.retry(force=True)
    await takes_wider(handle, optional_result.call(user_id=1))


async def batches_that_fit(connection: Connection) -> None:
    calls: Sequence[Call[object]] = [keep.call(text="x"), row.call(a=1), counted.call({"a": 1}), without_payload.call()]
    assert_type((await jobs.defer_many(calls))[0].id, int)
    mixed = await jobs.defer_many([keep.call(text="x"), row.call(a=1), counted.call({"a": 1}), without_payload.call()])
    assert_type(mixed[0].id, int)
    assert_type(await jobs.defer_many(boxed.call(item=i) for i in range(3)), list[JobHandle[Box[str]]])
    own_options = [optional_result.options(priority=i).call(user_id=i) for i in range(3)]
    assert_type(await jobs.defer_many(own_options, connection=connection), list[JobHandle[Sent | None]])
    await jobs.defer_many([])


async def functions_called_themselves(ctx: JobContext, none: JobContext[None]) -> None:
    assert_type(await plain_function(ctx, 1), Sent)
    assert_type(await optional_result(ctx, UserWithNote(user_id=1)), Sent | None)
    assert_type(await optional_result(none, user_id=1), Sent | None)
    assert_type(ctx.cancelled, bool)
    assert_type(ctx.cancel_reason, Literal["timeout", "cancelled", "shutdown", "claim_lost"] | None)
    assert_type(ctx.job, Job)
    assert_type(ctx.store, PgJobStore)


async def the_drivers_own_objects(pool: asyncpg.Pool) -> None:
    from_pool = App(pool=pool)
    assert_type(from_pool, App[None])
    async with pool.acquire() as connection, connection.transaction():
        await keep.options(connection=connection).defer(text="x")


async def apps_and_workers(store: PgJobStore) -> None:
    assert_type(App(store=store), App[None])
    assert_type(jobs.store, PgJobStore)
    assert_type(jobs.lifespan(), AbstractAsyncContextManager[None])
    assert_type(jobs.worker(concurrency=5, enabled=False, retention=None, ack="sync", queues=["a"]), Worker)
    async with jobs as opened:
        assert_type(opened, App[None])


async def calls_that_do_not_fit(connection: Connection, when: datetime) -> None:
    await optional_result.defer(User(user_id=1))  # E
    await boxed.defer(item="x")  # E
    await boxed.defer(Box[str](item="x"))  # E
    await checked.defer(x="x")  # E
    await point.defer()  # E
    await row.defer(1)  # E
    await counted.defer({"b": 1})  # E
    await counted.defer({"a": "x"})  # E
    await aliased.defer(user_id="x")  # E
    await plain_function.defer(1, True)  # E
    await without_payload.defer(1)  # E
    await two_models.defer(User(user_id=1))  # E
    await decorated.defer(user_id="x")  # E
    keep.call(txt="x")  # E
    keep.handle("1")  # E
    keep.find_sync("1")  # E
    await keep.find("1")  # E


def synchronous_calls_that_do_not_fit(
    handle: JobHandle[Sent | None], connection: Connection, asynchronous: AsyncSession
) -> None:
    keep.defer_sync(txt="x")  # E
    keep.defer_sync(text=1)  # E
    keep.defer_sync()  # E
    optional_result.defer_sync(User(user_id=1))  # E
    boxed.defer_sync(item="x")  # E
    counted.defer_sync({"b": 1})  # E
    plain_function.defer_sync(1, True)  # E
    without_payload.defer_sync(1)  # E
    two_models.defer_sync(User(user_id=1))  # E
    keep.options(priority=1).defer_sync(txt="x")  # E
    jobs.defer_many_sync([keep.defer_sync(text="x")])  # E
    jobs.defer_many_sync(keep.call(text="x"))  # E
    jobs.defer_many_sync([keep.call(text="x")], connection=connection)  # E
    jobs.defer_many_sync([keep.call(text="x")], connection=asynchronous)  # E
    repr(handle.result_sync().message_id)  # E
    handle.result_sync(timeout="1")  # E
    handle.retry_sync(True)  # E


async def options_that_do_not_fit(when: datetime) -> None:
    keep.options(connection=when)  # E
    keep.options(queue=3)  # E
    keep.options(run_after=5)  # E
    keep.options(dedupe_key=5)  # E
    keep.options(name="x")  # E
    keep.options(backoff=3)  # E
    keep.options(priority=1).options(prio=2)  # E
    keep.options(priority=1).call(txt="x")  # E
    jobs.worker(concurrent=5)  # E
    jobs.worker(ack="never")  # E


async def takes_narrower(handle: JobHandle[Sent]) -> None: ...


async def results_that_do_not_fit(handle: JobHandle[Sent | None]) -> None:
    await takes_narrower(handle)  # E
    repr((await handle.result()).message_id)  # E
    await handle.result(timeout="1")  # E
    await handle.retry(True)  # E


async def batches_that_do_not_fit() -> None:
    await jobs.defer_many([keep.defer(text="x")])  # E
    await jobs.defer_many([User(user_id=1)])  # E
    await jobs.defer_many(keep.call(text="x"))  # E
    await jobs.defer_many([keep.call(text="x")], connection=3)  # E


async def functions_called_wrongly(other: JobContext[int], none: JobContext[None]) -> None:
    await keep(other, text="x")  # E
    await keep(none, text=1)  # E
    await keep(text="x")  # E


# resources


@dataclass
class Resources:
    key: str


@asynccontextmanager
async def open_resources() -> AsyncIterator[Resources]:
    yield Resources("k")


rich = App(resources=open_resources)
assert_type(rich, App[Resources])


@jobs.task  # E
async def state_without_resources(ctx: JobContext[Resources], a: int) -> None: ...


@rich.task(queue="x")
async def typed_state(ctx: JobContext[Resources], a: int) -> None:
    assert_type(ctx.state, Resources)
    repr(ctx.state.nope)  # E


@rich.task(queue="x")
async def unchecked_state(ctx: JobContext, a: int) -> None:
    repr(ctx.state.whatever)


@rich.task(queue="x")
def state_as_object(ctx: JobContext[object], a: int) -> None: ...


App(resources=3)  # E
App(resources=open_resources())  # E
App(dns="x")  # E


# middleware


class State:
    name: str = ""


@asynccontextmanager
async def opens_state() -> AsyncIterator[State]:
    yield State()


with_state = App(resources=opens_state)


@with_state.middleware
async def sees_state(ctx: JobContext[State], call_next: CallNext) -> object:
    assert_type(ctx.state, State)
    assert_type(ctx.payload, object)
    assert_type(await call_next(ctx), object)
    return await call_next(ctx)


@with_state.middleware
async def any_state(ctx: JobContext, call_next: CallNext) -> Sent | None:
    return Sent(message_id="m")


@jobs.middleware
async def of_any_app(ctx: JobContext[object], call_next: CallNext) -> object:
    return await asyncio.create_task(call_next(ctx))


@jobs.middleware
async def without_state(ctx: JobContext[None], call_next: CallNext) -> object:
    return await call_next(ctx)


@jobs.middleware  # E
async def of_another_state(ctx: JobContext[State], call_next: CallNext) -> object:
    return await call_next(ctx)


@jobs.middleware  # E
async def without_call_next(ctx: JobContext) -> object:
    return None


@jobs.middleware  # E
def plain_middleware(ctx: JobContext, call_next: CallNext) -> object:
    return None


@jobs.middleware
async def passes_the_wrong_thing(ctx: JobContext, call_next: CallNext) -> object:
    await call_next()  # E
    return await call_next(ctx.job)  # E


async def next_of_a_test(ctx: JobContext[object], /) -> object:
    return Sent(message_id="m")


async def middleware_called_itself(ctx: JobContext[State], store: PgJobStore) -> None:
    assert_type(await sees_state(ctx, next_of_a_test), object)
    assert_type(await any_state(ctx, next_of_a_test), Sent | None)
    assert_type(jobs.worker(middleware=[of_any_app, without_state]), Worker)
    assert_type(Worker(store=store, handlers={}, middleware=[sees_state, any_state]), Worker)
    jobs.worker(middleware=[takes_no_handle])  # E


# hooks


@jobs.before_defer
def looks(deferral: Deferral) -> None:
    assert_type(deferral.payload, object)
    assert_type(deferral.run_after, datetime | timedelta | None)


@jobs.before_defer
def routes(deferral: Deferral) -> Deferral | None:
    return deferral.replace(queue="q", timeout=None, run_after=timedelta(hours=1), dedupe_key=None)


@jobs.before_defer  # E
def returns_text(deferral: Deferral) -> str:
    return ""


@jobs.before_defer  # E
async def async_before(deferral: Deferral) -> None: ...


@jobs.after_defer
def notes(deferral: Deferral, handle: JobHandle[object]) -> None:
    assert_type(handle.id, int)


@jobs.after_defer  # E
def takes_no_handle(deferral: Deferral) -> None: ...


def hooks_called_themselves(deferral: Deferral) -> None:
    assert_type(routes(deferral), Deferral | None)
    deferral.replace(job_type="x")  # E
    deferral.replace(priority="high")  # E
    deferral.queue = "q"  # E


# resources for tests


def overrides(other: Callable[[], AbstractAsyncContextManager[Sent]]) -> None:
    with with_state.override_resources(opens_state), with_state.override_resources(lambda: nullcontext(State())):
        pass
    with jobs.override_resources(lambda: nullcontext(None)):
        pass
    with_state.override_resources(other)  # E
    with_state.override_resources(opens_state())  # E


# versions


def from_1_to_2(payload: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {**payload, "note": ""}


def from_2_to_3(payload: JsonObject) -> JsonObject:
    payload["user_id"] = payload.pop("user")
    return payload


def any_upgrade(payload: dict[str, Any]) -> dict[str, Any]:
    return payload


def wrong_upgrade(payload: dict[str, JsonValue]) -> list[JsonValue]:
    return [payload]


async def async_upgrade(payload: JsonObject) -> JsonObject:
    return payload


@jobs.task(payload=User, version=3, upgrades={1: from_1_to_2, 2: from_2_to_3})
async def versioned(ctx: JobContext, payload: User) -> Sent:
    return Sent(message_id="m")


@jobs.task(payload=User, version=2, upgrades={1: lambda payload: {**payload, "note": 1}})
def versioned_plain(ctx: JobContext, payload: User) -> Sent:
    return Sent(message_id="m")


@jobs.task(payload=Counted, version=2, upgrades={1: any_upgrade})
async def versioned_dict(ctx: JobContext, payload: Counted) -> None: ...


@jobs.task(version=2, upgrades={1: from_1_to_2})
async def versioned_parameters(ctx: JobContext, user_id: int) -> None: ...


@jobs.task(payload=User, version="2")  # E
async def version_that_is_text(ctx: JobContext, payload: User) -> None: ...


@jobs.task(payload=User, version=2, upgrades={"1": from_1_to_2})  # E
async def upgrades_by_text(ctx: JobContext, payload: User) -> None: ...


@jobs.task(payload=User, version=2, upgrades={1: wrong_upgrade})  # E
async def upgrade_to_a_list(ctx: JobContext, payload: User) -> None: ...


@jobs.task(version=2, upgrades={1: async_upgrade})  # E
async def upgrade_that_is_async(ctx: JobContext, user_id: int) -> None: ...


async def versions_are_declared() -> None:
    assert_type(await (await versioned.defer(user_id=1)).result(), Sent)
    assert_type(await (await versioned_plain.defer(User(user_id=1))).result(), Sent)
    await versioned_parameters.defer(1)
    versioned.options(version=2)  # E
    report = await jobs.check(tasks=["versioned"], sample=10)
    assert_type(report, CheckReport)
    assert_type(report.undecodable[0].ids, tuple[int, ...])


# schedules


@jobs.task(cron="30 2 * * *", tz="Europe/Berlin", catch_up="all", overlap="skip", jitter=timedelta(minutes=5))
async def nightly(ctx: JobContext, day: str = "yesterday") -> None:
    assert_type(ctx.scheduled_for, datetime | None)


@jobs.task(payload=UserWithNote, every=timedelta(hours=1))
async def hourly(ctx: JobContext, payload: UserWithNote) -> None: ...


jobs.task(cron=5)  # E
jobs.task(every=60)  # E
jobs.task(cron="* * * * *", catch_up="some")  # E
jobs.task(cron="* * * * *", overlap="never")  # E
jobs.task(cron="* * * * *", timezone="UTC")  # E

assert_type(
    jobs.schedule("a", nightly.call(day="x"), cron="* * * * *", tz="UTC", catch_up="one", paused=True),
    ScheduleDefinition,
)
jobs.schedule("b", hourly.call(user_id=1), every=timedelta(hours=1), jitter=timedelta(seconds=5))
jobs.schedule("c", hourly.call(UserWithNote(user_id=1)), every=timedelta(hours=1))
jobs.schedule("d", nightly.call(), cron="* * * * *", every=timedelta(hours=1))  # E
jobs.schedule("e", nightly.call(), every=timedelta(hours=1), tz="UTC")  # E
jobs.schedule("f", nightly.call())  # E
jobs.schedule("g", nightly, cron="* * * * *")  # E
jobs.schedule("h", hourly.call(), cron="* * * * *")  # E
jobs.schedule("i", nightly.call(day=5), cron="* * * * *")  # E
jobs.schedule("j", nightly.call(), every=3600)  # E
jobs.schedule("k", nightly.call(), cron="* * * * *", overlap="maybe")  # E
App(name=5)  # E


async def schedules_by_hand() -> None:
    assert_type(await jobs.schedules.list(), list[Schedule])
    assert_type(await jobs.schedules.add("mine", nightly.call(), cron="* * * * *", tz="UTC", paused=True), Schedule)
    assert_type(await jobs.schedules.edit("mine", every=timedelta(hours=1), call=hourly.call(user_id=1)), Schedule)
    assert_type(await jobs.schedules.run("mine"), int)
    assert_type(await jobs.schedules.preview("mine", 3), Preview)
    assert_type((await jobs.schedules.get("mine")).state, Literal["active", "paused", "orphaned"])
    await jobs.schedules.add("mine", nightly, cron="* * * * *")  # E
    await jobs.schedules.edit("mine", crom="* * * * *")  # E
    await jobs.schedules.pause(5)  # E


def tell(progress: BulkProgress) -> None: ...


async def many_jobs_are_selected(handles: Sequence[JobHandle[Sent]], store: PgJobStore) -> None:
    wanted = JobFilter(
        statuses=[Status.FAILED],
        job_types={"send"},
        queues=("mail",),
        ids=range(3),
        error_contains="timeout",
        payload={"user_id": 1, "tags": ["a"]},
        finished_after=timedelta(hours=1),
        created_before=datetime.now().astimezone(),
    )
    selection = jobs.select(wanted, limit=10)
    assert_type(selection, JobSelection)
    assert_type(await selection.retry(force=True, dry_run=True, on_progress=tell), BulkReport)
    assert_type(selection.move_sync("slow"), BulkReport)
    assert_type(await selection.find(), list[Job])
    assert_type(selection.count_sync(), int)
    report = await jobs.select(handle.id for handle in handles).cancel()
    assert_type(report.refusals[0].reason, RefusalReason)
    assert_type(store.select([1]), Selection)
    jobs.select(handles)  # E
    jobs.select("1")  # E
    JobFilter(statuses=Status.FAILED)  # E
    JobFilter(statuses=["FAILED"])  # E
    JobFilter(status=[Status.FAILED])  # E
    JobFilter(payload={"at": uuid.uuid4()})  # E
    JobFilter(finished_after=3600)  # E
    wanted.queues = ["other"]  # E
    await selection.move()  # E
    await selection.prioritize("high")  # E
    await selection.cancel(force=True)  # E
    await selection.delete(dryrun=True)  # E
    await selection.retry(on_progress=print_nothing)  # E
    store.select([1]).cancel_sync()  # E


async def look_at_statistics(jobs: App[None], store: PgJobStore, worker: Worker, now: datetime) -> None:
    rows = await store.statistics(now, now, step=timedelta(minutes=5), by="task", queue="mail")
    assert_type(rows, list[StatisticsRow])
    assert_type(rows[0].run, Histogram)
    assert_type(rows[0].run.percentile(95), float | None)
    assert_type(worker.vitals, Vitals)
    assert_type(worker.vitals.running, int)
    await store.statistics(now, now, by="worker")  # E
    await store.statistics(now)  # E
    await store.statistics(now, now, step=60)  # E
    rows[0].done = 1  # E
    await store.enqueue("t", {}, headers={"a": "b"})
    await store.enqueue("t", {}, headers={"a": 1})  # E
    jobs.worker(statistics=None)
    jobs.worker(statistics=7)  # E


def add_headers(deferral: Deferral) -> Deferral:
    assert_type(deferral.headers, Mapping[str, str])
    deferral.replace(headers={"a": 1})  # E
    return deferral.replace(headers={**deferral.headers, "a": "b"})


def print_nothing() -> None: ...


async def progress_is_typed(ctx: JobContext, handle: JobHandle[Sent], store: PgJobStore) -> None:
    assert_type(await ctx.progress(0.5, "half"), None)
    assert_type(await ctx.progress(1), None)
    ctx.progress_sync(0.5, message=None)
    assert_type(await handle.progress(), Progress | None)
    assert_type(handle.progress_sync(), Progress | None)
    assert_type(handle.watch(timedelta(minutes=1), every=0.1), AsyncIterator[Progress])
    assert_type(handle.watch_sync(timeout=5), Iterator[Progress])
    assert_type(await store.progress(1), Progress | None)
    async for progress in store.watch(1, timeout=5.0):
        assert_type(progress.value, float)
        assert_type(progress.message, str | None)
        assert_type(progress.reported_at, datetime)
        progress.value = 0.5  # E
    await ctx.progress("half")  # E
    await ctx.progress(0.5, 5)  # E
    await ctx.progress()  # E
    ctx.progress_sync(None)  # E
    handle.watch("5")  # E
    for _ in handle.watch():  # E
        pass
