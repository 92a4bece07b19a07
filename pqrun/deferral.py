"""Hooks around ``defer``: what they are shown of a job, what they may change of it, and when they are called."""

import inspect
import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from traceback import extract_tb
from types import MappingProxyType
from typing import TypeAlias, TypeVar

import msgspec
from typing_extensions import TypedDict, Unpack

from pqrun.errors import ArgumentsError, DeclarationError
from pqrun.handle import Call, JobHandle
from pqrun.job.dedupe import stored_key
from pqrun.job.options import JobOptions, check_headers, check_run_after
from pqrun.job.record import NewJob
from pqrun.job.storable import one_line

__all__ = ["AfterHook", "BeforeHook", "DeferHooks", "Deferral", "DeferralOptions", "check_hook"]

R = TypeVar("R")

_LOGGER = logging.getLogger("pqrun")


class DeferralOptions(TypedDict, total=False):
    """What ``Deferral.replace`` takes."""

    queue: str
    priority: int
    """A smallint; higher first."""
    max_attempts: int
    """How many starts may count."""
    timeout: float | timedelta | None
    """Seconds or a timedelta for one run of the handler; None: no limit."""
    run_after: datetime | timedelta | None
    """An aware datetime, a timedelta from now by the database's clock, or None for now."""
    dedupe_key: str | None
    """The finished key, never expanded; None: no key."""
    headers: Mapping[str, str] | None
    """What travels beside the payload, all of it: ``{**deferral.headers, "name": "text"}`` adds to it."""


class Deferral(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A validated job at the moment of its writing, as hooks see it; ``replace`` makes a copy with other options."""

    job_type: str
    """The name of its task."""
    payload: object
    """The payload as a worker will read it: a model of its own, or a dict by parameter. Changing it changes nothing that is stored."""
    queue: str
    priority: int
    max_attempts: int
    timeout: float | None
    """Seconds; None: no limit."""
    run_after: datetime | timedelta | None
    """Aware, or from now by the database's clock; None: now."""
    dedupe_key: str | None
    """Finished, as it is stored."""
    headers: Mapping[str, str] = MappingProxyType({})
    """What travels beside the payload; empty without."""
    in_transaction: bool
    """Whether it joins a transaction of the caller's (``connection=``), which may still be rolled back."""

    def replace(self, **options: Unpack[DeferralOptions]) -> "Deferral":
        """Return a copy with these options; raises OptionError or DedupeKeyError, naming the option, and ArgumentsError."""
        for name in options:
            if name not in DeferralOptions.__annotations__:
                known = ", ".join(sorted(DeferralOptions.__annotations__))
                raise ArgumentsError(f"a hook cannot change {name!r} of a deferral; it can change {known}")
        checked = JobOptions.checked(
            queue=options.get("queue", self.queue),
            priority=options.get("priority", self.priority),
            max_attempts=options.get("max_attempts", self.max_attempts),
            timeout=options.get("timeout", self.timeout),
        )
        due, delay = check_run_after(options.get("run_after", self.run_after))
        key = options.get("dedupe_key", self.dedupe_key)
        headers = options.get("headers", self.headers)
        _ = check_headers(headers)
        return msgspec.structs.replace(
            self,
            queue=checked.queue,
            priority=checked.priority,
            max_attempts=checked.max_attempts,
            timeout=checked.timeout_seconds,
            run_after=due if delay is None else timedelta(seconds=delay),
            dedupe_key=None if key is None else stored_key(key),
            headers=MappingProxyType(dict(headers or {})),
        )

    def __repr__(self) -> str:
        return f"Deferral(job_type={self.job_type!r}, queue={self.queue!r})"


BeforeHook: TypeAlias = Callable[[Deferral], Deferral | None]
"""A plain function; what it raises refuses the job, what it returns, if not None, is written instead."""

AfterHook: TypeAlias = Callable[[Deferral, JobHandle[object]], object]
"""A plain function; what it returns is not looked at, what it raises is logged."""


class DeferHooks:
    """The hooks of one app; its tasks look here whether there are any."""

    __slots__ = ("after", "before")

    def __init__(self) -> None:
        # Replaced as a whole, so that a thread that goes through them is not disturbed by one that adds to them.
        self.before: tuple[BeforeHook, ...] = ()
        self.after: tuple[AfterHook, ...] = ()

    def prepared(self, call: Call[R], *, in_transaction: bool) -> Call[R]:
        """Show a call to the hooks before, in order, and return what is to be written; what a hook raises passes as it is."""
        shown = original = _shown(call, in_transaction)
        for hook in self.before:
            answer: object = hook(shown)
            if answer is not None and answer is not shown:
                shown = _checked_answer(hook, shown, answer)
        if shown is original:
            return call
        return msgspec.structs.replace(call, job=_changed(call.job, shown, original))

    def written(self, call: Call[R], handle: JobHandle[R], *, in_transaction: bool) -> None:
        """Show a written job to the hooks after; what one of them raises is logged, and nothing else comes of it."""
        shown = _shown(call, in_transaction)
        for hook in self.after:
            try:
                _ = hook(shown, handle)
            except Exception as error:  # noqa: BLE001  # the job is written: whoever deferred it must get its handle
                _log_failure(hook, handle, error)


def _shown(call: Call[object], in_transaction: bool) -> Deferral:
    job = call.job
    return Deferral(
        job_type=job.job_type,
        payload=call.load(job.payload),
        queue=job.queue,
        priority=job.priority,
        max_attempts=job.max_attempts,
        timeout=job.timeout_seconds,
        run_after=job.run_after if job.delay_seconds is None else timedelta(seconds=job.delay_seconds),
        dedupe_key=job.dedupe_key,
        headers=MappingProxyType({} if job.headers is None else msgspec.json.decode(job.headers)),
        in_transaction=in_transaction,
    )


def _checked_answer(hook: BeforeHook, shown: Deferral, answer: object) -> Deferral:
    if not isinstance(answer, Deferral):
        raise ArgumentsError(
            f"before_defer: {_name(hook)} must return None or deferral.replace(...); it returned {type(answer).__name__}"
        )
    if (answer.job_type, answer.in_transaction) != (shown.job_type, shown.in_transaction) or (
        answer.payload is not shown.payload
    ):
        raise ArgumentsError(f"before_defer: {_name(hook)} may change options only, by deferral.replace(...)")
    # Again: a copy made in another way was not checked.
    return shown.replace(
        queue=answer.queue,
        priority=answer.priority,
        max_attempts=answer.max_attempts,
        timeout=answer.timeout,
        run_after=answer.run_after,
        dedupe_key=answer.dedupe_key,
        headers=answer.headers,
    )


def _changed(job: NewJob, shown: Deferral, original: Deferral) -> NewJob:
    due, delay = job.run_after, job.delay_seconds
    if shown.run_after != original.run_after:  # else it keeps what a timedelta might have rounded
        due, delay = check_run_after(shown.run_after)
    return msgspec.structs.replace(
        job,
        queue=shown.queue,
        priority=shown.priority,
        max_attempts=shown.max_attempts,
        timeout_seconds=shown.timeout,
        dedupe_key=shown.dedupe_key,
        headers=check_headers(shown.headers),
        run_after=due,
        delay_seconds=delay,
    )


def _log_failure(hook: AfterHook, handle: JobHandle[object], error: Exception) -> None:
    """One line with type and place: the message of the error, and the values in its traceback, may be those of the payload."""
    frames = extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    _LOGGER.error(
        "after_defer: %s raised %s%s; job %d is written all the same",
        one_line(_name(hook)),
        type(error).__name__,
        one_line(place),
        handle.id,
    )


def _name(hook: object) -> str:
    return getattr(hook, "__qualname__", None) or type(hook).__qualname__


def check_hook(hook: object, kind: str, arguments: int) -> None:
    """Refuse, by DeclarationError, what could not be called as a hook; ``kind`` is before_defer or after_defer."""
    if not callable(hook):
        raise DeclarationError(f"{kind} takes a plain function; got {type(hook).__name__}")
    call = getattr(hook, "__call__", hook)  # noqa: B004  # an object's own __call__ tells whether it is async
    if any(map(inspect.iscoroutinefunction, (hook, call))) or any(map(inspect.isgeneratorfunction, (hook, call))):
        raise DeclarationError(
            f"{kind} takes a plain function, called where defer is; {_name(hook)} is async or a generator"
        )
    signature = inspect.signature(hook)
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        takes = "deferral, handle" if arguments > 1 else "deferral"
        raise DeclarationError(f"{kind} calls ({takes}); {_name(hook)}{signature} does not take that") from None
