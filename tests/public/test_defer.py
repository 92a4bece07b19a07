"""What is deferred arrives at the handler, equal and of the same types; what cannot arrive is refused before it is written."""

import enum
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pydantic
import pytest
from pydantic import AliasGenerator, BaseModel, ConfigDict, Field, SecretStr, field_serializer
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

from pqrun import App, DeferError, JobContext, NotOpenError, PayloadError, Status
from tests.public.at_work import at_work, count_jobs


class Welcome(BaseModel):
    user_id: int
    template: str = "welcome"


@pydantic.dataclasses.dataclass
class Order:
    lines: list[int]


@dataclass
class Ping:
    host: str


class Resize(msgspec.Struct):
    path: str
    width: int = 100


class Mail(TypedDict):
    to: str


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


ALL_KINDS = [Welcome(user_id=1), Order(lines=[1, 2]), Ping("h"), Resize("x", 3), Mail(to="x")]


async def test_a_payload_of_every_kind_arrives_equal(jobs: App[None]) -> None:
    seen: list[object] = []

    def declare(given: object) -> Any:
        model: Any = Mail if isinstance(given, dict) else type(given)

        @jobs.task(payload=model, name=f"keep {model.__name__}")
        async def keep(ctx: JobContext, payload: object) -> None:
            seen.append(payload)

        return keep

    tasks = [declare(given) for given in ALL_KINDS]
    async with at_work(jobs):
        for task, given in zip(tasks, ALL_KINDS, strict=True):
            await (await task.defer(given)).result(timeout=30)
    assert seen == ALL_KINDS
    assert [type(payload) for payload in seen] == [type(given) for given in ALL_KINDS]


async def test_fields_and_a_whole_model_arrive_the_same(jobs: App[None]) -> None:
    seen: list[Welcome] = []

    @jobs.task(payload=Welcome)
    async def send_email(ctx: JobContext, payload: Welcome) -> None:
        seen.append(payload)

    async with at_work(jobs):
        handles = [await send_email.defer(user_id=1), await send_email.defer(Welcome(user_id=1))]
        for handle in handles:
            await handle.result(timeout=30)
    assert seen == [Welcome(user_id=1), Welcome(user_id=1)]
    assert [handle.created for handle in handles] == [True, True]


async def test_parameters_arrive_by_their_names_and_types(jobs: App[None]) -> None:
    seen: list[object] = []

    @jobs.task
    async def add(ctx: JobContext, a: int, when: date, *, note: str = "none") -> None:
        seen.append((a, when, note))

    async with at_work(jobs):
        await (await add.defer(1, date(2026, 1, 2))).result(timeout=30)
        await (await add.defer(a=2, when=date(2026, 1, 3), note="x")).result(timeout=30)
    assert seen == [(1, date(2026, 1, 2), "none"), (2, date(2026, 1, 3), "x")]


async def test_one_annotated_model_arrives_whole(jobs: App[None]) -> None:
    seen: list[Welcome] = []

    @jobs.task
    async def send_email(ctx: JobContext, message: Welcome) -> None:
        seen.append(message)

    async with at_work(jobs):
        job = await send_email.defer(Welcome(user_id=1))
        await job.result(timeout=30)
        assert (await job.job()).payload == {"user_id": 1, "template": "welcome"}
    assert seen == [Welcome(user_id=1)]


class Rich(BaseModel):
    whole: list[int]
    real: list[float]
    amount: list[Decimal]
    id: UUID
    at: datetime
    naive: datetime
    day: date
    span: timedelta
    colour: Colour
    level: Level
    tags: set[str]
    pair: tuple[int, str]
    data: bytes


class RichStruct(msgspec.Struct):
    whole: list[int]
    real: list[float]
    amount: list[Decimal]
    id: UUID
    at: datetime
    naive: datetime
    day: date
    span: timedelta
    colour: Colour
    level: Level
    tags: set[str]
    pair: tuple[int, str]
    data: bytes


@pytest.mark.parametrize("model", [Rich, RichStruct])
async def test_numbers_and_rich_types_come_back_equal(jobs: App[None], model: Any) -> None:
    given = model(
        whole=[2**53 + 1, 2**63 - 1, -1] + ([2**70] if model is Rich else []),
        real=[0.1, 1e22, 1e-7, 1.7976931348623157e308],
        amount=[Decimal("0.10"), Decimal("1E+400")],
        id=UUID(int=7),
        at=datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2))),
        naive=datetime(2026, 1, 1, 12, 0, 0, 1),  # noqa: DTZ001  # naive stays naive
        day=date(2026, 2, 28),
        span=timedelta(days=1, microseconds=1),
        colour=Colour.RED,
        level=Level.HIGH,
        tags={"a", "b"},
        pair=(1, "x"),
        data=b"abc",
    )
    seen: list[Any] = []

    @jobs.task(payload=model)
    async def keep(ctx: JobContext, payload: object) -> None:
        seen.append(payload)

    async with at_work(jobs):
        await (await keep.defer(given)).result(timeout=30)
    assert seen == [given]
    assert [type(real) for real in seen[0].real] == [float] * 4
    assert [str(amount) for amount in seen[0].amount] == ["0.10", "1E+400"]
    assert seen[0].naive.tzinfo is None


class ByAlias(BaseModel):
    value_: str = Field(alias="value")


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=AliasGenerator(to_camel), populate_by_name=True)
    user_name: str


async def test_fields_with_aliases_come_back_equal(jobs: App[None]) -> None:
    seen: list[object] = []

    @jobs.task(payload=ByAlias)
    async def by_alias(ctx: JobContext, payload: ByAlias) -> None:
        seen.append(payload)

    @jobs.task(payload=Camel)
    async def camel(ctx: JobContext, payload: Camel) -> None:
        seen.append(payload)

    async with at_work(jobs):
        await (await by_alias.defer(ByAlias(value="x"))).result(timeout=30)
        await (await camel.defer(Camel(user_name="x"))).result(timeout=30)
    assert seen == [ByAlias(value="x"), Camel(user_name="x")]


async def test_readers_take_what_a_newer_producer_wrote(jobs: App[None]) -> None:
    seen: list[Welcome] = []

    @jobs.task(payload=Welcome)
    async def send_email(ctx: JobContext, payload: Welcome) -> None:
        seen.append(payload)

    async with at_work(jobs):
        job_id = await jobs.store.enqueue("send_email", {"user_id": 1, "flag": True})
        handle = send_email.handle(job_id)
        await handle.result(timeout=30)
        assert (await handle.job()).attempts == 1
    assert seen == [Welcome(user_id=1)]


class Token(BaseModel):
    token: SecretStr


class ClearToken(Token):
    @field_serializer("token")
    def _clear(self, token: SecretStr) -> str:
        return token.get_secret_value()


async def test_a_secret_is_never_stored_as_its_mask(jobs: App[None], connection: asyncpg.Connection) -> None:
    seen: list[str] = []

    @jobs.task(payload=Token)
    async def masked(ctx: JobContext, payload: Token) -> None: ...

    @jobs.task(payload=ClearToken)
    async def clear(ctx: JobContext, payload: ClearToken) -> None:
        seen.append(payload.token.get_secret_value())

    async with at_work(jobs):
        with pytest.raises(PayloadError, match="token") as caught:
            await masked.defer(Token(token=SecretStr("hunter2")))
        assert "hunter2" not in str(caught.value)
        assert await count_jobs(connection) == 0
        job = await clear.defer(ClearToken(token=SecretStr("hunter2")))
        await job.result(timeout=30)
        assert "hunter2" not in repr(await job.job())
    assert seen == ["hunter2"]


async def test_text_of_any_language_and_anything_like_an_escape_arrives_unchanged(jobs: App[None]) -> None:
    texts = ["\\u0000", "Žluťoučký 🐎 \u2028", "", "a'b\"c\\d{e}%f", "x" * 1_000_000]
    seen: list[str] = []

    @jobs.task
    async def keep(ctx: JobContext, text: str) -> None:
        seen.append(text)

    async with at_work(jobs):
        for text in texts:
            await (await keep.defer(text)).result(timeout=30)
    assert seen == texts


class Loose(BaseModel):
    x: float = 0.0
    text: str = ""
    anything: Any = None


class LooseStruct(msgspec.Struct):
    x: float = 0.0
    text: str = ""
    anything: Any = None


UNSTORABLE: dict[str, tuple[dict[str, object], str]] = {
    "NaN": ({"x": float("nan")}, "x"),
    "infinity": ({"x": float("inf")}, "x"),
    "nested NaN": ({"anything": {"y": float("nan")}}, r"anything.*y"),
    "infinity in a list": ({"anything": [float("-inf")]}, "anything"),
    "NUL": ({"text": "a\x00b"}, "text"),
    "NUL in a key": ({"anything": {"n\x00": [1]}}, "anything"),
    "lone surrogate": ({"text": "\ud83d"}, "text"),
}


@pytest.mark.parametrize("model", [Loose, LooseStruct])
async def test_what_cannot_be_stored_is_refused_by_its_path_and_spoils_no_transaction(
    jobs: App[None], connection: asyncpg.Connection, model: Any
) -> None:
    @jobs.task(payload=model)
    async def keep(ctx: JobContext, payload: object) -> None: ...

    async with jobs, connection.transaction():
        for fields, path in UNSTORABLE.values():
            with pytest.raises(DeferError, match=path):
                await keep.options(connection=connection).defer(model(**fields))
        assert await count_jobs(connection) == 0


async def test_a_misspelt_wrong_or_missing_field_is_named_and_nothing_is_written(
    jobs: App[None], connection: asyncpg.Connection
) -> None:
    @jobs.task(payload=Welcome)
    async def send_email(ctx: JobContext, payload: Welcome) -> None: ...

    unchecked: Any = send_email
    async with jobs:
        with pytest.raises(PayloadError, match="localee"):
            await unchecked.defer(user_id=1, localee="de")
        with pytest.raises(PayloadError, match="user_id"):
            await unchecked.defer(user_id="x")
        with pytest.raises(PayloadError, match="user_id"):
            await unchecked.defer()
    assert await count_jobs(connection) == 0


async def test_before_the_app_is_open_an_error_shows_both_ways_to_open_it(jobs: App[None]) -> None:
    @jobs.task
    async def sweep(ctx: JobContext) -> None: ...

    for attempt in (sweep.defer(), jobs.defer_many([sweep.call()]), sweep.handle(1).result(timeout=1)):
        with pytest.raises(NotOpenError, match=r"(?s)async with jobs.*lifespan=jobs\.lifespan"):
            await attempt


async def test_an_app_can_be_opened_again_and_twice_at_once(jobs: App[None]) -> None:
    @jobs.task
    async def sweep(ctx: JobContext) -> None: ...

    async with jobs:
        async with jobs:
            await sweep.defer()
        job = await sweep.defer()
    async with jobs:
        assert await job.status() is Status.READY
    assert not jobs.store.is_open
