"""How far the jobs are: counted from the worker's events, shown as a bar on a terminal and as lines elsewhere."""

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pqrun.run.events import Done, Event, Failed, Picked, Retrying

__all__ = ["ConsoleLog", "Tally", "showing"]

LINES = 10
"""Lines of progress where there is no terminal."""


class ConsoleLog(logging.Handler):
    """Prints log records between the lines of progress, without disturbing a bar."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        self._console.print(f"  {record.getMessage()}", markup=False, soft_wrap=True)


class Tally:
    """Subscribes to a worker's events and counts those about the given jobs."""

    def __init__(self, job_ids: Collection[int]) -> None:
        self.total = len(job_ids)
        self.done = 0
        self.failed = 0
        self.retries = 0
        self.on_change: Callable[[], None] = lambda: None
        self._job_ids = frozenset(job_ids)
        self._running: set[int] = set()
        self._started_at: float | None = None
        self._ended_at = 0.0

    @property
    def ended(self) -> int:
        """Jobs that are DONE or FAILED."""
        return self.done + self.failed

    @property
    def seconds(self) -> float:
        """From the first start to the last end so far."""
        return 0.0 if self._started_at is None else self._ended_at - self._started_at

    def __str__(self) -> str:
        return f"{self.done} done, {self.failed} failed, {len(self._running)} in hand, {self.retries} retries"

    def __call__(self, event: Event) -> None:
        """Count one event."""
        if not isinstance(event, Picked | Done | Failed | Retrying) or event.job.id not in self._job_ids:
            return
        now = time.perf_counter()
        if isinstance(event, Picked):
            self._running.add(event.job.id)
            self._started_at = self._started_at or now
        else:
            self._running.discard(event.job.id)
            self._ended_at = now
        self.done += isinstance(event, Done)
        self.failed += isinstance(event, Failed)
        self.retries += isinstance(event, Retrying)
        self.on_change()


@contextmanager
def showing(tally: Tally, console: Console) -> Iterator[None]:
    """Show the tally as it changes."""
    if not console.is_terminal:
        tally.on_change = _lines(tally, console)
        yield
        return
    columns = (
        TextColumn("  "),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(str(tally), total=tally.total)
        tally.on_change = lambda: progress.update(bar, completed=tally.ended, description=str(tally))
        yield


def _lines(tally: Tally, console: Console) -> Callable[[], None]:
    told = 0

    def tell() -> None:
        nonlocal told
        part = tally.ended * LINES // max(tally.total, 1)
        if part > told:
            told = part
            console.print(f"  {tally.ended}/{tally.total}: {tally}")

    return tell
