"""What was deferred: the payloads of waiting jobs, as the task's own models, and assertions about them.

A waiting job is SCHEDULED or READY: one that a worker has taken, or has run, is looked for in vain. ``enqueued(task)`` is typed wholly: it
gives models to compare with. ``assert_enqueued`` takes a whole model or a function of one, which checkers check too, or single fields by
keyword, which only the run can: the parameters of a model's constructor cannot be made optional for a type checker.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Never, TypeVar, overload

from typing_extensions import TypedDict, Unpack

from pqrun.job.record import Job
from pqrun.job.state import Status
from pqrun.job.storable import one_line
from pqrun.store.rehearsing import Unended, list_active
from pqrun.task import Task
from pqrun.testing.matching import Expectation, describe, payload_of
from pqrun.testing.opening import looking, run_sync

__all__ = [
    "assert_enqueued",
    "assert_enqueued_sync",
    "assert_not_enqueued",
    "assert_not_enqueued_sync",
    "enqueued",
    "enqueued_sync",
]

M = TypeVar("M")

SHOWN = 10
"""Jobs in a message."""


class Conditions(TypedDict, total=False):
    """What else a job must satisfy; options of the assertions."""

    queue: str
    """In this queue."""
    due_after: datetime | timedelta
    """Due at this time or later: aware, or from now."""
    due_before: datetime | timedelta
    """Due at this time or earlier: aware, or from now."""
    fields: Mapping[str, object]
    """Fields of the payload, for those that have the name of an option here."""


@overload
async def enqueued(task: Task[..., Never, Any, Any], *, queue: str | None = None) -> list[dict[str, object]]: ...
@overload
async def enqueued(task: Task[..., M, Any, Any], *, queue: str | None = None) -> list[M]: ...
async def enqueued(task: Task[..., Any, Any, Any], *, queue: str | None = None) -> list[Any]:
    """Return the payloads of this task's waiting jobs, oldest first: models, or the arguments by name where those are the payload.

    ``queue``: only of that one. ``assert await enqueued(send_email) == [Welcome(user_id=1)]`` says all in one line. Raises
    PayloadDecodeError for a stored payload that does not satisfy the model.
    """
    return [
        payload_of(task.declared, one.job.payload_json)
        for one in await _waiting(task)
        if one.job.job_type == task.name and queue in (None, one.job.queue)
    ]


@overload
def enqueued_sync(task: Task[..., Never, Any, Any], *, queue: str | None = None) -> list[dict[str, object]]: ...
@overload
def enqueued_sync(task: Task[..., M, Any, Any], *, queue: str | None = None) -> list[M]: ...
def enqueued_sync(task: Task[..., Any, Any, Any], *, queue: str | None = None) -> list[Any]:
    """Do the same as ``enqueued`` in a test without an event loop."""
    return run_sync(enqueued(task, queue=queue), instead="enqueued")


@overload
async def assert_enqueued(
    task: Task[..., M, Any, Any],
    payload: M | Callable[[M], bool],
    /,
    *,
    times: int | None = None,
    **conditions: Unpack[Conditions],
) -> list[Job]: ...
@overload
async def assert_enqueued(
    task: Task[..., Any, Any, Any],
    /,
    *,
    times: int | None = None,
    queue: str = ...,
    due_after: datetime | timedelta = ...,
    due_before: datetime | timedelta = ...,
    fields: Mapping[str, object] = ...,
    **values: object,
) -> list[Job]: ...
async def assert_enqueued(
    task: Task[..., Any, Any, Any], /, *payload: object, times: int | None = None, **given: object
) -> list[Job]:
    """Return the waiting jobs of this task that satisfy all that is given; fail, telling what waits instead, where there is none.

    ``assert_enqueued(send_email, user_id=1)`` asks for single fields: each value is read as ``defer`` would read it, and a name that the
    payload does not have is an ArgumentsError. ``assert_enqueued(send_email, Welcome(user_id=1))`` asks for the whole payload,
    ``assert_enqueued(send_email, lambda p: p.user_id > 0)`` for what a function says of it. ``times``: exactly so many; None: one or more.
    ``queue``, ``due_after``, ``due_before``: see ``Conditions``; a field of such a name goes into ``fields={...}``.
    """
    expectation = Expectation.of(task.declared, payload, given)
    waiting = await _waiting(task)
    found = [one.job for one in waiting if one.job.job_type == task.name and not expectation.misses(one)]
    if len(found) != times if times is not None else not found:
        wanted = "" if times is None else f" (expected {times})"
        what = _counted(len(found), task, expectation)
        raise AssertionError(f"{what}{wanted}; {_instead(task, waiting, expectation)}")
    return found


@overload
async def assert_not_enqueued(
    task: Task[..., M, Any, Any], payload: M | Callable[[M], bool], /, **conditions: Unpack[Conditions]
) -> None: ...
@overload
async def assert_not_enqueued(
    task: Task[..., Any, Any, Any],
    /,
    *,
    queue: str = ...,
    due_after: datetime | timedelta = ...,
    due_before: datetime | timedelta = ...,
    fields: Mapping[str, object] = ...,
    **values: object,
) -> None: ...
async def assert_not_enqueued(task: Task[..., Any, Any, Any], /, *payload: object, **given: object) -> None:
    """Fail, telling which, if a waiting job of this task satisfies all that is given; takes what ``assert_enqueued`` takes."""
    expectation = Expectation.of(task.declared, payload, given)
    waiting = await _waiting(task)
    found = [one for one in waiting if one.job.job_type == task.name and not expectation.misses(one)]
    if found:
        shown = "".join(f"\n  {describe(one)}" for one in found[:SHOWN])
        raise AssertionError(f"{_counted(len(found), task, expectation)}, expected none{shown}")


@overload
def assert_enqueued_sync(
    task: Task[..., M, Any, Any],
    payload: M | Callable[[M], bool],
    /,
    *,
    times: int | None = None,
    **conditions: Unpack[Conditions],
) -> list[Job]: ...
@overload
def assert_enqueued_sync(
    task: Task[..., Any, Any, Any],
    /,
    *,
    times: int | None = None,
    queue: str = ...,
    due_after: datetime | timedelta = ...,
    due_before: datetime | timedelta = ...,
    fields: Mapping[str, object] = ...,
    **values: object,
) -> list[Job]: ...
def assert_enqueued_sync(
    task: Task[..., Any, Any, Any], /, *payload: Any, times: int | None = None, **given: Any
) -> list[Job]:
    """Do the same as ``assert_enqueued`` in a test without an event loop."""
    return run_sync(assert_enqueued(task, *payload, times=times, **given), instead="assert_enqueued")


@overload
def assert_not_enqueued_sync(
    task: Task[..., M, Any, Any], payload: M | Callable[[M], bool], /, **conditions: Unpack[Conditions]
) -> None: ...
@overload
def assert_not_enqueued_sync(
    task: Task[..., Any, Any, Any],
    /,
    *,
    queue: str = ...,
    due_after: datetime | timedelta = ...,
    due_before: datetime | timedelta = ...,
    fields: Mapping[str, object] = ...,
    **values: object,
) -> None: ...
def assert_not_enqueued_sync(task: Task[..., Any, Any, Any], /, *payload: Any, **given: Any) -> None:
    """Do the same as ``assert_not_enqueued`` in a test without an event loop."""
    run_sync(assert_not_enqueued(task, *payload, **given), instead="assert_not_enqueued")


async def _waiting(task: Task[..., Any, Any, Any]) -> list[Unended]:
    async with looking(task.store) as store:
        return [one for one in await list_active(store) if one.job.status is not Status.RUNNING]


def _counted(count: int, task: Task[..., Any, Any, Any], expectation: Expectation) -> str:
    jobs = "job" if count == 1 else "jobs"
    return f"{count or 'no'} waiting {jobs} of {one_line(task.name)}{expectation.text}"


def _instead(task: Task[..., Any, Any, Any], waiting: Sequence[Unended], expectation: Expectation) -> str:
    """Tell what waits, and in what it differs."""
    ours = [one for one in waiting if one.job.job_type == task.name]
    others = Counter(one_line(one.job.job_type) for one in waiting if one.job.job_type != task.name)
    lines = [f"{len(ours) or 'none'} of it waiting"]
    for one in ours[:SHOWN]:
        lines.append(f"  {describe(one)}")
        lines += [f"    {miss}" for miss in expectation.misses(one)]
    if len(ours) > SHOWN:
        lines.append(f"  and {len(ours) - SHOWN} more")
    if others:
        lines.append("  of other tasks: " + ", ".join(f"{name} ({count})" for name, count in others.items()))
    return "\n".join(lines)
