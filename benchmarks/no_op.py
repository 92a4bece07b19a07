"""The job that is measured: it does nothing, with a validated payload and a stored result, as every peer's does.

An app factory takes the DSN and the process's `Recorder`; ``benchmarks.serve`` imports it by name (``benchmarks.no_op:plain``).
"""

import sys
import time
from array import array
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from pqrun import App, JobContext

__all__ = ["JOB_TYPE", "PAYLOAD", "Payload", "Recorder", "Records", "plain", "read_records", "recorded"]

JOB_TYPE = "no_op"

PAYLOAD = "jsonb_build_object('t', 1.5, 'i', i, 's', 'no-op')"
"""The payload of the i-th job, in SQL."""


class Payload(BaseModel):
    """A few fields to validate, as real ones have."""

    t: float
    """Seconds of the epoch when it was deferred, where that matters."""
    i: int
    s: str


class Recorder:
    """What a worker process notes about its handlers; times are seconds of the epoch, as the server has them on the same machine."""

    def __init__(self, path: Path | None = None) -> None:
        self.has_started = False
        self._path = path
        self.ids = array("q")
        self.starts = array("d")
        self.ends = array("d")

    def tell_started(self) -> None:
        """Tell the parent, once, that a handler has started."""
        self.has_started = True
        sys.stdout.write(f"started {time.time()!r}\n")
        sys.stdout.flush()

    def note(self, job_id: int, start: float, end: float) -> None:
        """Note one run of a handler."""
        self.ids.append(job_id)
        self.starts.append(start)
        self.ends.append(end)

    def write(self) -> None:
        """Leave the notes for the parent."""
        if self._path is not None:
            with self._path.open("wb") as file:
                for column in (self.ids, self.starts, self.ends):
                    column.tofile(file)


class Records(NamedTuple):
    """The notes of a worker process: one entry per run of a handler, by the time of its end."""

    ids: "array[int]"
    starts: "array[float]"
    ends: "array[float]"


def read_records(path: Path) -> Records:
    """Read what a `Recorder` wrote."""
    count = path.stat().st_size // 24
    columns = Records(array("q"), array("d"), array("d"))
    with path.open("rb") as file:
        for column in columns:
            column.fromfile(file, count)
    return columns


def plain(dsn: str, recorder: Recorder) -> App[None]:
    """Tell when the first handler starts, and nothing else."""
    app = App(dsn=dsn)

    @app.task(payload=Payload)
    async def no_op(_ctx: JobContext, payload: Payload) -> dict[str, bool]:  # noqa: ARG001  # validated all the same
        if not recorder.has_started:
            recorder.tell_started()
        return {"ok": True}

    return app


def recorded(dsn: str, recorder: Recorder) -> App[None]:
    """Note the start and the end of each handler."""
    app = App(dsn=dsn)

    @app.task(payload=Payload)
    async def no_op(ctx: JobContext, payload: Payload) -> dict[str, bool]:  # noqa: ARG001  # validated all the same
        start = time.time()
        if not recorder.has_started:
            recorder.tell_started()
        recorder.note(ctx.job.id, start, time.time())
        return {"ok": True}

    return app
