"""How a function becomes a task: its options checked, its signature read, its codecs compiled, all when it is declared.

What is wrong with a declaration is told where it stands, by function, file and line; nothing is left to be found by a worker.
"""

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import BaseModel
from typing_extensions import TypedDict, Unpack

from pqrun.errors import ArgumentsError, DeclarationError, DedupeKeyError, OptionError
from pqrun.job.dedupe import DedupeTemplate, compile_template, stored_key
from pqrun.job.options import JobOptions, check_headers, check_job_type, check_payload_version, check_run_after
from pqrun.job.policy import BackoffPolicy, judge_retry_delay
from pqrun.job.record import NewJob
from pqrun.job.result import ResultCodec, result_codec
from pqrun.job.rules import RetryRules, check_rules
from pqrun.job.schedule import CatchUp, Overlap
from pqrun.job.signature import Signature, read_signature
from pqrun.job.versions import OlderPayloads, Upgrade, check_upgrades
from pqrun.run.context import JobContext
from pqrun.store.ports import AnyConnection, AnySyncConnection

__all__ = [
    "BACKOFF_DELAYS_MAX",
    "CallOptions",
    "DataclassInstance",
    "Declared",
    "DeclaredOptions",
    "Placement",
    "ResultValue",
    "ScheduleOptions",
    "TaskOptions",
    "check_declared",
    "declare",
    "locate",
    "located",
]

BACKOFF_DELAYS_MAX = 32
"""How many delays of a per-call backoff are stored with the job; the last one repeats."""

_LOGGER = logging.getLogger("pqrun")

RESERVED_PREFIX = "__"
"""Names of pqrun's own tasks, such as the cleanup that every worker serves, begin with it."""


class DataclassInstance(Protocol):
    """Any instance of a dataclass, pydantic's included."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


ResultValue: TypeAlias = BaseModel | msgspec.Struct | DataclassInstance | Mapping[str, object] | None
"""What a handler may return: a model, dataclass, Struct, TypedDict or mapping with string keys, or None."""


class TaskOptions(TypedDict, total=False):
    """Options that a task declares and that a call may set anew."""

    queue: str
    """Default ``"default"``."""
    priority: int
    """A smallint, default 0; higher first."""
    max_attempts: int
    """How many starts may count, default 5."""
    timeout: float | timedelta | None
    """Seconds or a timedelta for one run of the handler; None (default): no limit."""
    backoff: BackoffPolicy
    """How long a failed job waits for its next attempt; default: the worker's policy."""


class ScheduleOptions(TypedDict, total=False):
    """When a schedule fires, and how: one of ``cron`` and ``every``."""

    cron: str
    """Five fields (minute hour day month weekday), or six with seconds first, such as ``"30 2 * * *"``."""
    every: timedelta
    """1 s to 366 days of real time, counted from 1970-01-01T00:00Z."""
    tz: str
    """The zone of ``cron``, such as ``"Europe/Berlin"``; default UTC."""
    catch_up: CatchUp
    """What becomes of firings that no worker was there for: "skip", "one" for all of them (default), or "all", 1000 at most."""
    overlap: Overlap
    """A firing while the job of the last one is active: "allow" (default) or "skip"."""
    jitter: timedelta
    """Each job is due up to so much later than planned, by a part that depends on name and planned time alone; default 0."""


class DeclaredOptions(TaskOptions, ScheduleOptions, total=False):
    """Options of ``@jobs.task(...)``."""

    name: str
    """The job_type; default: the function's name. Not to be changed while jobs of that name are stored."""
    version: int
    """The version of the payload, stored with each job; default 1. To be raised when code of before cannot read what is stored now."""
    upgrades: Mapping[int, Upgrade]
    """For older versions n, a function that makes a payload of version n + 1 from one of n; both are JSON objects."""
    retry_on: type[BaseException] | tuple[type[BaseException], ...]
    """Exceptions after which another attempt may follow, as in ``except``; all others end the job FAILED at once. Default: all may."""
    no_retry_on: type[BaseException] | tuple[type[BaseException], ...]
    """Exceptions that end the job FAILED at once, subclasses of those in ``retry_on`` say. A timeout counts as ``HandlerTimeout``."""


class CallOptions(TaskOptions, total=False):
    """Options of ``task.options(...)``."""

    run_after: datetime | timedelta
    """When the job is due: an aware datetime, or a timedelta from now by the database's clock."""
    dedupe_key: str | None
    """The finished key, never expanded; None: no key for this call."""
    headers: Mapping[str, str] | None
    """Texts that travel beside the payload to ``ctx.job.headers``, such as a trace; they replace those of an earlier ``.options``."""
    connection: AnyConnection | AnySyncConnection
    """Write the job in the open transaction of this connection: a synchronous one for ``defer_sync``, any other for ``defer``."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """How a job of a task is to be written: what the task declares, overlaid by each ``.options(...)``."""

    options: JobOptions
    run_after: datetime | None = None
    delay_seconds: float | None = None
    backoff: BackoffPolicy | None = None
    """The policy of this call; the task's own stays with its handler."""
    dedupe_key: str | UnsetType | None = UNSET
    """Unset: the declared one."""
    headers: str | None = None
    """JSON text."""
    connection: AnyConnection | AnySyncConnection | None = None

    def overlaid(self, **given: Unpack[CallOptions]) -> "Placement":
        """Check the given options and lay them over these; raises OptionError, naming the option."""
        for name in given:
            if name not in CallOptions.__annotations__:
                raise ArgumentsError(_unknown(name, CallOptions.__annotations__, "task.options()"))
        changes: dict[str, object] = {"options": _overlaid_options(self.options, given)}
        if "run_after" in given:
            changes["run_after"], changes["delay_seconds"] = check_run_after(given["run_after"])
        if "backoff" in given:
            changes["backoff"] = _checked_backoff(given["backoff"])
        if "dedupe_key" in given:
            key = given["dedupe_key"]
            changes["dedupe_key"] = None if key is None else stored_key(key)
        if "headers" in given:
            changes["headers"] = check_headers(given["headers"])
        if "connection" in given:
            changes["connection"] = given["connection"]
        return msgspec.structs.replace(self, **changes)

    def backoff_seconds(self) -> tuple[float, ...] | None:
        """The delays of this call's own policy, None without one; evaluated here because the job may run anywhere."""
        if self.backoff is None or self.options.max_attempts == 1:
            return None
        count = min(self.options.max_attempts - 1, BACKOFF_DELAYS_MAX)
        judged = [judge_retry_delay(self.backoff, attempts) for attempts in range(1, count + 1)]
        for complaint in dict.fromkeys(one.complaint for one in judged if one.complaint is not None):
            _LOGGER.warning("backoff of a call replaced by the default: %s", complaint)
        return tuple(one.value for one in judged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A function that passed every check, with all that its task and its handler need."""

    name: str
    function: Callable[..., object]
    where: str
    """Function, file and line, for messages."""
    model: object
    """What ``payload=`` gave; None where the function's parameters are the payload."""
    signature: Signature
    result: ResultCodec[object]
    dedupe_key: DedupeTemplate | Callable[[Any], str] | None
    placement: Placement
    backoff: BackoffPolicy | None
    rules: RetryRules | None
    version: int
    older: OlderPayloads

    @property
    def is_async(self) -> bool:
        """Whether the function is to be awaited: a plain wrapper made with functools.wraps hands on what it wraps."""
        return self.signature.is_async or inspect.iscoroutinefunction(inspect.unwrap(self.function))

    def build(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        """Make the payload from the arguments of ``defer`` or ``call``; raises PayloadError and ArgumentsError."""
        signature = self.signature
        if self.model is None and signature.model_parameter is not None:
            return self._one_payload(signature.model_parameter, args, kwargs)
        if self.is_whole_payload(args, kwargs):
            return args[0]
        return signature.codec.build(args, kwargs)

    def is_whole_payload(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
        """Whether these arguments are one instance of the payload= model rather than its fields."""
        return self.model is not None and len(args) == 1 and not kwargs and self.signature.codec.is_instance(args[0])

    def _one_payload(self, parameter: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        """The one model of a function whose own parameter it is: given by position or by the parameter's name, whole."""
        values = [*args, *kwargs.values()]
        if len(values) == 1 and (args or parameter in kwargs) and self.signature.codec.is_instance(values[0]):
            return values[0]
        model = self.signature.codec.name
        came = ", ".join([*(type(value).__name__ for value in args), *(f"{name}=" for name in kwargs)]) or "nothing"
        raise ArgumentsError(
            f"{self.name} takes one {model} as its payload, got {came}: pass {model}(...), or declare payload={model}"
        )

    def new_job(self, payload: object, placement: Placement) -> NewJob:
        """Turn a built payload into the row to write; raises PayloadError and DedupeKeyError."""
        text = self.signature.codec.dump(payload)
        key = placement.dedupe_key
        options = placement.options
        return NewJob(
            job_type=self.name,
            payload=text,
            queue=options.queue,
            priority=options.priority,
            max_attempts=options.max_attempts,
            timeout_seconds=options.timeout_seconds,
            dedupe_key=self._declared_key(text) if isinstance(key, UnsetType) else key,
            run_after=placement.run_after,
            delay_seconds=placement.delay_seconds,
            backoff_seconds=placement.backoff_seconds(),
            payload_version=self.version,
            headers=placement.headers,
        )

    def _declared_key(self, text: str) -> str | None:
        if self.dedupe_key is None:
            return None
        if isinstance(self.dedupe_key, DedupeTemplate):
            return stored_key(self.dedupe_key.render(text))
        # Made from what was read back, so that the key belongs to the payload that is stored, not to an unvalidated instance.
        key = self.dedupe_key(self.signature.codec.load(text))
        if not isinstance(key, str):
            raise DedupeKeyError(f"the dedupe_key function of {self.name} must return text; got {type(key).__name__}")
        return stored_key(key)


def check_declared(options: Mapping[str, object], *, payload: object, dedupe_key: object) -> None:
    """Check what can be known of ``@jobs.task(...)`` before there is a function."""
    for name in options:
        if name not in DeclaredOptions.__annotations__:
            raise DeclarationError(_unknown(name, DeclaredOptions.__annotations__, "@jobs.task()"))
    if dedupe_key is None or isinstance(dedupe_key, str):
        return
    if not callable(dedupe_key):
        raise OptionError(
            f"dedupe_key must be a template or a function of the payload; got {type(dedupe_key).__name__}"
        )
    if payload is None:
        raise DeclarationError(
            "a dedupe_key function needs the payload= form: @jobs.task(payload=Model, dedupe_key=lambda payload: ...); "
            "where the function's parameters are the payload, give a template such as 'welcome:{user_id}'"
        )


def declare(
    function: Callable[..., object],
    *,
    payload: object = None,
    dedupe_key: str | Callable[[Any], str] | None = None,
    **options: Unpack[DeclaredOptions],
) -> Declared:
    """Check a function and its options and compile its codecs; raises DeclarationError and OptionError."""
    with located(function):
        _refuse_what_is_no_function(function)
        name = _checked_name(options.pop("name", function.__name__))
        version = check_payload_version(options.pop("version", 1), "version")
        upgrades = check_upgrades(options.pop("upgrades", {}), version)
        signature = read_signature(function, payload=payload, context=JobContext)
        return Declared(
            name=name,
            function=function,
            where=locate(function),
            model=payload,
            signature=signature,
            result=result_codec(signature.returns, where=signature.name),
            dedupe_key=_compiled(dedupe_key, signature),
            placement=Placement(options=_overlaid_options(JobOptions(), options)),
            backoff=_checked_backoff(options["backoff"]) if "backoff" in options else None,
            rules=check_rules(retry_on=options.get("retry_on"), no_retry_on=options.get("no_retry_on")),
            version=version,
            older=OlderPayloads(task=name, version=version, upgrades=upgrades, load=signature.codec.load),
        )


@contextmanager
def located(function: object) -> Iterator[None]:
    """Add function, file and line to what is said of a declaration."""
    try:
        yield
    except DeclarationError as error:
        raise DeclarationError(f"{error} [{locate(function)}]") from error.__cause__


def locate(function: object) -> str:
    """Name a function with its file and line, as far as they are known."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    if code is None:
        return name
    return f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


def _refuse_what_is_no_function(function: object) -> None:
    if isinstance(function, staticmethod | classmethod):
        raise DeclarationError(f"write @{type(function).__name__} above @jobs.task, not below it")
    if inspect.isclass(function) or not inspect.isfunction(function):
        kind = "class" if inspect.isclass(function) else type(function).__name__
        raise DeclarationError(f"a task is made from a function of (ctx, ...), async or plain; got a {kind}")
    if next(iter(inspect.signature(function).parameters), "") in {"self", "cls"}:
        raise DeclarationError(
            "a method cannot be a task, since a worker has no instance for it; move it out of its class"
        )


def _checked_name(name: str) -> str:
    check_job_type(name)
    if name.startswith(RESERVED_PREFIX):
        raise DeclarationError(
            f"names that begin with '__' are reserved for pqrun; got {name!r}, so give another name="
        )
    return name


def _compiled(
    dedupe_key: str | Callable[[Any], str] | None, signature: Signature
) -> DedupeTemplate | Callable[[Any], str] | None:
    if isinstance(dedupe_key, str):
        return compile_template(dedupe_key, signature.codec.fields, where=signature.name)
    return dedupe_key


def _overlaid_options(options: JobOptions, given: TaskOptions) -> JobOptions:
    return JobOptions.checked(
        queue=given.get("queue", options.queue),
        priority=given.get("priority", options.priority),
        max_attempts=given.get("max_attempts", options.max_attempts),
        timeout=given.get("timeout", options.timeout_seconds),
    )


def _checked_backoff(backoff: object) -> BackoffPolicy:
    if not isinstance(backoff, BackoffPolicy):
        raise OptionError(f"backoff must be an instance of a BackoffPolicy; got {type(backoff).__name__}")
    return backoff


def _unknown(name: str, known: Iterable[str], place: str) -> str:
    from difflib import get_close_matches  # for a message, and not light

    close = get_close_matches(name, list(known), n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(sorted(known))}"
    return f"{place} has no option {name!r}; {hint}"
