"""Before a deploy: can the code that is about to run read every job that waits? What ``pqrun check`` and ``jobs.check()`` do.

All jobs that have not finished are counted first, which is quick and says what nobody serves; then a sample of each task and version is
decoded, so that what is wrong shows at once; then all. Running jobs count too: each may fail or lose its worker, and is then decoded by
the new code. Jobs that are deferred after the count are not looked at.
"""

import asyncio
import heapq
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from pqrun.errors import OptionError, PayloadDecodeError
from pqrun.job.shape import FieldChange, Shape, shape_changes
from pqrun.job.storable import one_line
from pqrun.run.handler import Handler
from pqrun.run.lowlevel import CLEANUP
from pqrun.store import PgJobStore
from pqrun.store.checking import (
    CHECK_SETTINGS,
    Counted,
    Page,
    Stored,
    count_waiting,
    find_shapes,
    find_waiting,
    page_waiting,
)
from pqrun.store.link import Link

__all__ = [
    "SAMPLE_DEFAULT",
    "CheckProgress",
    "CheckReport",
    "ShapeChange",
    "UndecodableJobs",
    "UnservedJobs",
    "check_jobs",
]

SAMPLE_DEFAULT: Final = 1_000
"""Jobs of each task and version that are decoded first."""

IDS_SHOWN: Final = 20
"""Ids that a finding names at most, the lowest first."""

DECODE_ROWS: Final = 500
"""Payloads decoded in one go: a millisecond or two, then others of this event loop have their turn."""

SAMPLE_ROWS: Final = 500
"""Payloads of the sample that are read by one statement."""

PATIENCE_SECONDS: Final = 30.0
"""What one piece may take on a database that is cold: nobody waits for a check."""

Phase: TypeAlias = Literal["counting", "sample", "all"]


class UndecodableJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting jobs of one task whose payloads the code cannot decode."""

    job_type: str
    count: int
    versions: tuple[int, ...]
    """The versions of their payloads."""
    first_error: str
    """Of the one with the lowest id: fields and reasons, never values; on one line."""
    ids: tuple[int, ...]
    """The lowest ids, 20 at most."""


class CheckProgress(msgspec.Struct, frozen=True):
    """How far a check has come."""

    phase: Phase
    done: int
    """Jobs that this phase has looked at."""
    total: int | None
    """All that it will look at; None while they are being counted."""
    undecodable: tuple[UndecodableJobs, ...]
    """What this phase could not decode so far."""


Tell: TypeAlias = Callable[[CheckProgress], None]
"""What hears of the progress; on the event loop of the check."""


class UnservedJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting jobs of a job_type for which the app has no task."""

    job_type: str
    count: int
    queues: tuple[str, ...]


class ShapeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A task whose payload looks different from what its workers have noted."""

    job_type: str
    version: int
    """Of the code."""
    noted_version: int
    """Of the workers: the same, or the highest below it."""
    changes: tuple[FieldChange, ...]
    is_problem: bool
    """False for what is additive, and for what a new version with upgrades covers."""
    advice: str
    """What to do, in a sentence."""


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found; ``is_clean`` is what a deploy may rely on."""

    waiting: int
    """Jobs that have not finished: SCHEDULED, READY and RUNNING; of the chosen tasks, where some were chosen."""
    decoded: int
    """Those whose payloads were looked at: all that are served and still there, or the sample."""
    is_sample: bool
    """Whether only a sample of each task and version was decoded."""
    undecodable: tuple[UndecodableJobs, ...]
    unserved: tuple[UnservedJobs, ...]
    shapes: tuple[ShapeChange, ...]

    @property
    def is_clean(self) -> bool:
        """Whether every payload was decoded, every job_type is served, and no shape has changed in a way that breaks readers."""
        return not (self.undecodable or self.unserved or any(shape.is_problem for shape in self.shapes))


async def check_jobs(
    store: PgJobStore,
    handlers: Mapping[str, Handler],
    *,
    tasks: Collection[str] | None = None,
    sample: int = SAMPLE_DEFAULT,
    sample_only: bool = False,
    on_progress: Tell = lambda _progress: None,
) -> CheckReport:
    """Check the jobs of an open store against these handlers; see ``App.check``."""
    chosen = _chosen(handlers, tasks)
    _check_sample(sample)
    census = _Census(chosen, is_filtered=tasks is not None, size=sample)
    link = store.open_link("check", kept=False, settings=CHECK_SETTINGS, patience=PATIENCE_SECONDS)
    try:
        await store.check_schema()
        await _count(link, census, ids=sample, tell=lambda done: on_progress(CheckProgress("counting", done, None, ())))
        findings = await _decode_sample(link, census, chosen, on_progress)
        is_sample = findings.looked < census.served
        if is_sample and not sample_only:
            is_sample = False
            findings = await _decode_all(link, census, chosen, on_progress)
        shapes = await _compared(link, chosen)
    finally:
        await link.close()
    return CheckReport(
        waiting=census.waiting,
        decoded=findings.looked,
        is_sample=is_sample,
        undecodable=findings.result(),
        unserved=census.unserved(),
        shapes=shapes,
    )


async def _decode_sample(
    link: Link, census: "_Census", handlers: Mapping[str, Handler], on_progress: Tell
) -> "_Findings":
    findings = _Findings(handlers)
    ids = census.sample()
    for start in range(0, len(ids), SAMPLE_ROWS):
        await findings.decode(await find_waiting(link, ids[start : start + SAMPLE_ROWS]))
        on_progress(CheckProgress("sample", min(start + SAMPLE_ROWS, len(ids)), len(ids), findings.result()))
    return findings


async def _decode_all(link: Link, census: "_Census", handlers: Mapping[str, Handler], on_progress: Tell) -> "_Findings":
    findings = _Findings(handlers)
    done = 0
    async for page in _pages(link, census.last_id, list(handlers)):
        await findings.decode(page.jobs)
        done += page.looked
        on_progress(CheckProgress("all", done, max(done, census.rows), findings.result()))
    return findings


def _check_sample(sample: object) -> None:
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < 1:
        raise OptionError(f"sample: expected a whole number from 1; got {sample!r}")


def _chosen(handlers: Mapping[str, Handler], tasks: Collection[str] | None) -> dict[str, Handler]:
    if tasks is None:
        return dict(handlers)
    for name in tasks:
        if name not in handlers:
            import difflib  # for a message, and not light

            close = difflib.get_close_matches(name, handlers, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(sorted(handlers)) or 'none'}"
            raise OptionError(f"tasks: the app has no task {one_line(name)!r}; {hint}")
    return {name: handlers[name] for name in tasks}


class _Census:
    """How many jobs of each kind there are, and a sample of the ids of each task and version."""

    def __init__(self, handlers: Collection[str], *, is_filtered: bool, size: int) -> None:
        self._handlers = handlers
        self._is_filtered = is_filtered
        self._size = size
        # Each id with a lot that was drawn for it: the lowest lots of all are a fair sample, whatever the order they come in.
        self._drawn: dict[tuple[str, int], list[tuple[float, int]]] = {}
        self._unserved: dict[str, tuple[int, set[str]]] = {}
        self.rows = 0  # all, chosen or not: what the full pass walks over
        self.served = 0
        self.last_id = 0

    def add(self, counted: Counted) -> None:
        """Count jobs of one kind in one piece."""
        self.rows += counted.jobs
        if counted.job_type in self._handlers:
            self.served += counted.jobs
            drawn = self._drawn.setdefault((counted.job_type, counted.version), [])
            drawn += [(random.random(), job_id) for job_id in counted.ids]  # noqa: S311  # a sample, not a secret
            if len(drawn) > 2 * self._size:
                drawn[:] = heapq.nsmallest(self._size, drawn)
        elif counted.job_type != CLEANUP and not self._is_filtered:
            count, queues = self._unserved.get(counted.job_type, (0, set()))
            self._unserved[counted.job_type] = count + counted.jobs, queues | {counted.queue}

    @property
    def waiting(self) -> int:
        """Jobs that the report speaks of."""
        return self.served + sum(count for count, _ in self._unserved.values())

    def sample(self) -> list[int]:
        """Return the ids to begin with, in order."""
        return sorted(job_id for drawn in self._drawn.values() for _, job_id in heapq.nsmallest(self._size, drawn))

    def unserved(self) -> tuple[UnservedJobs, ...]:
        """Return what nobody serves."""
        return tuple(
            UnservedJobs(job_type=name, count=count, queues=tuple(sorted(queues)))
            for name, (count, queues) in sorted(self._unserved.items())
        )


async def _count(link: Link, census: _Census, *, ids: int, tell: Callable[[int], None]) -> None:
    last: int | None = 0
    while last is not None:
        census.last_id = last
        counted, last = await count_waiting(link, last, ids=ids)
        for one in counted:
            census.add(one)
        tell(census.rows)


async def _pages(link: Link, last_id: int, job_types: Collection[str]) -> AsyncIterator[Page]:
    """Read all, a piece ahead: the database makes one while the one before is decoded."""
    ahead = asyncio.create_task(page_waiting(link, 0, last_id, job_types))
    try:
        while (page := await ahead).last_id is not None:
            ahead = asyncio.create_task(page_waiting(link, page.last_id, last_id, job_types))
            await asyncio.sleep(0)  # so that it is on its way before the decoding begins
            yield page
    finally:
        ahead.cancel()
        await asyncio.wait({ahead})


class _Findings:
    """What could not be decoded, by task."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._found: dict[str, _Undecodable] = {}
        self.looked = 0

    async def decode(self, jobs: Sequence[Stored]) -> None:
        """Decode these payloads, each as a worker would, and note what cannot be."""
        for start in range(0, len(jobs), DECODE_ROWS):
            for job_id, job_type, version, payload in jobs[start : start + DECODE_ROWS]:
                try:
                    self._handlers[job_type].read(payload, version)
                except PayloadDecodeError as error:
                    self._note(job_id, job_type, version, str(error))
                except Exception as error:  # noqa: BLE001  # user code in validators; its message may hold the payload
                    self._note(job_id, job_type, version, f"the payload model raised {type(error).__name__}")
            await asyncio.sleep(0)
        self.looked += len(jobs)

    def _note(self, job_id: int, job_type: str, version: int, error: str) -> None:
        self._found.setdefault(job_type, _Undecodable()).add(job_id, version, error)

    def result(self) -> tuple[UndecodableJobs, ...]:
        """Return what was found, by task."""
        return tuple(found.result(name) for name, found in sorted(self._found.items()))


class _Undecodable:
    """Of one task."""

    def __init__(self) -> None:
        self._count = 0
        self._versions: set[int] = set()
        self._ids: list[int] = []
        self._first: tuple[int, str] | None = None

    def add(self, job_id: int, version: int, error: str) -> None:
        """Note one job."""
        self._count += 1
        self._versions.add(version)
        if len(self._ids) < IDS_SHOWN:
            self._ids.append(job_id)  # they come in order, but for those of one piece of the sample
        if self._first is None or job_id < self._first[0]:
            self._first = job_id, error

    def result(self, job_type: str) -> UndecodableJobs:
        """Return it as the report has it."""
        return UndecodableJobs(
            job_type=job_type,
            count=self._count,
            versions=tuple(sorted(self._versions)),
            first_error=one_line(self._first[1] if self._first else ""),
            ids=tuple(sorted(self._ids)),
        )


async def _compared(link: Link, handlers: Mapping[str, Handler]) -> tuple[ShapeChange, ...]:
    noted: dict[str, dict[int, Shape]] = {}
    for job_type, version, text in await find_shapes(link, handlers):
        noted.setdefault(job_type, {})[version] = msgspec.json.decode(text, type=Shape)
    changes = (_shape_change(handlers[name], noted[name]) for name in sorted(noted))
    return tuple(change for change in changes if change is not None)


def _shape_change(handler: Handler, noted: Mapping[int, Shape]) -> ShapeChange | None:
    """Compare with what is noted of the same version, else of the one before: what the jobs that wait were written by."""
    shape = None if handler.shape is None else handler.shape()
    if shape is None or handler.version is None:
        return None
    before = max((version for version in noted if version <= handler.version), default=None)
    changes = () if before is None else shape_changes(noted[before], shape)
    if before is None or not changes:
        return None
    is_additive = all(change.is_additive for change in changes)
    is_covered = handler.upgrades_from is not None and handler.upgrades_from <= before < handler.version
    return ShapeChange(
        job_type=handler.job_type,
        version=handler.version,
        noted_version=before,
        changes=changes,
        is_problem=not (is_additive or is_covered),
        advice=_advice(handler.version, before, is_additive=is_additive, is_covered=is_covered),
    )


def _advice(version: int, before: int, *, is_additive: bool, is_covered: bool) -> str:
    if is_additive:
        return "nothing to do: code of before and after read each other's payloads"
    if is_covered:
        return f"nothing to do: payloads of version {before} are upgraded; start workers of this code before anything defers with it"
    if version == before:
        return (
            f"state version={version + 1} and upgrades={{{version}: ...}}, a function that makes such a payload from one of before; "
            "or keep the fields, and give new ones a default"
        )
    return (
        f"give upgrades= a function for version {before}, which may return the payload as it is if that can still be read, "
        "so that jobs of before are not misread"
    )
