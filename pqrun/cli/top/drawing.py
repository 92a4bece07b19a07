"""A frame as text and tables for a terminal, or for a file."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

from pqrun.cli.queues import HEADINGS as QUEUE_HEADINGS
from pqrun.cli.queues import queue_cells
from pqrun.cli.showing import table
from pqrun.cli.top.frame import Frame
from pqrun.job.moments import brief
from pqrun.job.registered import RegisteredWorker
from pqrun.job.storable import one_line
from pqrun.store.workers import LongRunning

__all__ = ["draw"]

T = TypeVar("T")


def draw(frame: Frame, rows: int) -> RenderableType:
    """Return the frame with so many rows in each of its lists; what is left out is counted."""
    parts: list[RenderableType] = [Text(_summary(frame)), Text("")]
    if frame.minutes:
        parts += [table(("minute", "started", "done", "failed", "retried"), _minutes(frame)), Text("")]
    parts += _section(QUEUE_HEADINGS, [queue_cells(queue) for queue in frame.queues], rows, "no queues")
    parts += _section(
        ("worker", "id", "version", "state", "running", "beat"),
        [_worker(one) for one in frame.workers],
        rows,
        "no workers",
    )
    parts += _section(
        ("slowest", "task", "queue", "attempt", "for", "timeout", "worker"),
        [_running(job) for job in frame.slowest],
        rows,
        "nothing runs",
    )
    return Group(*parts[:-1])


def _section(
    headings: Sequence[str], rows: Sequence[Sequence[object]], most: int, none: str
) -> Iterable[RenderableType]:
    if not rows:
        return [Text(none), Text("")]
    shown: list[RenderableType] = [table(headings, rows[:most])]
    if len(rows) > most:
        shown.append(Text(f"and {len(rows) - most} more"))
    return [*shown, Text("")]


def _summary(frame: Frame) -> str:
    ended = frame.last_minute
    more = "+" if ended.at_least else ""
    rate = "-" if frame.error_rate is None else f"{frame.error_rate:.1%}"
    slots = sum(one.concurrency or 0 for one in frame.workers if one.is_alive and one.fetching)
    running = sum(one.running for one in frame.workers)
    return (
        f"{frame.at:%H:%M:%S %Z}  {sum(one.is_alive for one in frame.workers)} workers alive, {running:,} jobs held, {slots:,} slots\n"
        f"last 60 s: {ended.done:,}{more} done, {ended.failed:,}{more} failed, {ended.cancelled:,}{more} cancelled; "
        f"{_per_second(frame)}; errors: {rate}"
    )


def _per_second(frame: Frame) -> str:
    """Of the last complete minute that workers have counted, else of the jobs that have ended."""
    if frame.minutes:
        last = frame.minutes[-1]
        return f"in {last.arrived / 60:,.1f}/s, out {(last.done + last.failed) / 60:,.1f}/s"
    ended = frame.last_minute
    more = " or more" if ended.at_least else ""
    return f"out {(ended.done + ended.failed) / 60:,.1f}/s{more} (statistics are off, or too young)"


def _minutes(frame: Frame) -> Iterable[Sequence[object]]:
    for minute in frame.minutes:
        numbers = (minute.arrived, minute.done, minute.failed, minute.retrying)
        yield (f"{minute.at:%H:%M}", *(f"{number:,}" for number in numbers))


def _worker(worker: RegisteredWorker) -> Sequence[object]:
    at_once = "" if worker.concurrency is None else f"/{worker.concurrency}"
    return (
        worker.worker_id,
        worker.id,
        worker.version,
        worker.state,
        f"{worker.running}{at_once}",
        f"{brief(max(worker.beat_age_seconds, 0.0))} ago",
    )


def _running(job: LongRunning) -> Sequence[object]:
    return (
        job.id,
        one_line(job.job_type),
        job.queue,
        f"{job.attempts}/{job.max_attempts}",
        brief(max(job.running_seconds, 0.0)),
        None if job.timeout_seconds is None else brief(job.timeout_seconds),
        job.locked_by,
    )
