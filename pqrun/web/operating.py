"""Actions on many jobs, in the background of the process that was asked: first counted, which freezes the ids, then carried out in pieces.

All state is in the row of the operation, which is why any process can show it, stop it, and go on with one whose process has ended. A piece
is done to the jobs that the query still means, so what has changed since the count is left alone, and reported.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from pqrun.errors import PqrunError
from pqrun.job.bulk import (
    IDS_KEPT,
    Action,
    BulkReport,
    Refusal,
    RefusalReason,
    cancelling,
    deleting,
    moving,
    prioritizing,
    retrying,
)
from pqrun.job.filter import TIMES, JobFilter
from pqrun.job.query import parse_query, query_text
from pqrun.store import PgJobStore, operations
from pqrun.store.attempts import group_jobs, keep_group_jobs
from pqrun.store.link import Link
from pqrun.store.operations import Started
from pqrun.store.pages import writing
from pqrun.store.selecting import look, pages, sliced
from pqrun.store.selection import Selection
from pqrun.web.site import Site

__all__ = ["FINGERPRINT", "IDS_MAX", "Wish", "prepare", "start"]

_LOGGER = logging.getLogger("pqrun")

IDS_MAX: Final = 100_000
"""Jobs of one operation: their ids are kept until it is over."""

FINGERPRINT: Final = "fingerprint"
"""The argument of an operation on a group of errors: its jobs are found by their attempts, and looked at again before it is their turn."""

PIECE: Final = 1_000
"""Jobs between two looks whether to stop: a second at most."""

TELL_SECONDS: Final = 0.5
"""Between two notes of how far the counting has come."""

PATIENCE_SECONDS: Final = 2.0
"""How long an action waits for its operation before it shows the page of it: most are over by then."""

REFUSALS_KEPT: Final = 100


class Wish(NamedTuple):
    """What is asked for."""

    actor: str
    action: str
    arguments: Mapping[str, Any]

    @property
    def checked(self) -> Action:
        """The action; raises OptionError for an argument that cannot be."""
        return bulk_action(self.action, self.arguments)


def bulk_action(name: str, arguments: Mapping[str, Any]) -> Action:
    """Return an action by its name; raises OptionError."""
    makers: Mapping[str, Callable[[], Action]] = {
        "cancel": cancelling,
        "retry": lambda: retrying(force=bool(arguments.get("force"))),
        "delete": lambda: deleting(waiting=bool(arguments.get("waiting"))),
        "move": lambda: moving(arguments.get("queue")),
        "prioritize": lambda: prioritizing(arguments.get("priority")),
        "purge": lambda: deleting(waiting=True) if arguments.get("how") == "delete" else cancelling(),
    }
    return makers[name]()


async def prepare(site: Site, wish: Wish, *, query: str | None = None, ids: list[int] | None = None) -> int:
    """Write an operation and begin to count it, where it is a query; return its number. Waits a little for the count."""
    action = wish.checked
    wanted = JobFilter() if query is None else parse_query(query)
    store = await site.store()
    async with writing(store) as session:
        number = await operations.add_operation(session, *wish, query=query, ids=ids)
        target = query if query is not None else f"{len(ids or ()):,} chosen jobs"
        await operations.add_audit(
            session, wish.actor, wish.action, target or "all jobs", operation_id=number, outcome="prepared"
        )
    if ids is None:
        fingerprint = wish.arguments.get(FINGERPRINT)
        await _in_background(site, _guarded(store, number, _count(store, number, action, wanted, fingerprint)))
    return number


async def start(site: Site, number: int, matched: int) -> bool:
    """Carry it out, if it is the one that its author saw; return whether that began. Waits a little for its end."""
    store = await site.store()
    async with writing(store) as session:
        started = await operations.start(session, number, matched)
    if started is None:
        return False
    await _in_background(site, _guarded(store, number, _Run(store, started).go()))
    return True


async def _in_background(site: Site, work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    site.background.add(task)
    task.add_done_callback(site.background.discard)
    await asyncio.wait({task}, timeout=PATIENCE_SECONDS)


async def _guarded(store: PgJobStore, number: int, work: Coroutine[Any, Any, None]) -> None:
    """Write down what ends it. If that fails too, its beat stops, and it is shown as lost."""
    try:
        await work
    except PqrunError as error:
        _LOGGER.warning("pages: operation %d failed: %s", number, error)
        try:
            async with writing(store) as session:
                await operations.end(session, number, "FAILED", f"failed: {error}"[:500], str(error))
        except PqrunError:
            _LOGGER.warning("pages: the failure of operation %d could not be noted", number)


async def _found(
    link: Link, wanted: JobFilter, action: Action, fingerprint: str | None
) -> AsyncIterator[tuple[list[int], int]]:
    """Yield pieces of what is meant, and how many rows were looked at for each: of a group of errors by its attempts."""
    if fingerprint is None:
        async for page in pages(link, wanted, wanted.statuses or action.among):
            yield page.ids, page.looked
        return
    async for piece in group_jobs(link, fingerprint):
        yield piece.ids, piece.looked


async def _count(store: PgJobStore, number: int, action: Action, wanted: JobFilter, fingerprint: str | None) -> None:
    link = store.open_selection()
    clock = asyncio.get_running_loop().time
    told = clock()
    ids: list[int] = []
    looked = 0
    try:
        (begin,) = await look(link, "begin_selection")
        frozen = _frozen(wanted, begin["now"])
        text = query_text(frozen)
        async for found, rows in _found(link, frozen, action, fingerprint):
            looked += rows
            ids += found
            if len(ids) > IDS_MAX:
                break
            if clock() - told > TELL_SECONDS:
                told = clock()
                if not await operations.count(link, number, looked=looked, matched=len(ids), ids=None, query=text):
                    await operations.end(link, number, "STOPPED", "stopped while it was counted")
                    return
        kept = sorted(ids[:IDS_MAX])
        is_cut = len(ids) > IDS_MAX
        is_wanted = await operations.count(
            link, number, looked=looked, matched=len(kept), ids=kept, query=text, is_cut=is_cut
        )
        if not is_wanted:
            await operations.end(link, number, "STOPPED", "stopped while it was counted")
    finally:
        await link.close()


def _frozen(wanted: JobFilter, now: datetime) -> JobFilter:
    """Write out times that are told as so long ago: an hour later they mean the same jobs."""
    times: dict[str, Any] = {name: wanted.time(name, now) for name in TIMES}
    return replace(wanted, **times)


class _Run:
    """One operation at work; its tallies are what the row says too."""

    def __init__(self, store: PgJobStore, started: Started) -> None:
        self._store = store
        self._started = started
        self._wanted = None if started.query is None else parse_query(started.query)
        self._reasons: dict[RefusalReason, int] = {}
        self._refusals: list[Refusal] = []
        self._done = 0

    async def go(self) -> None:
        """Work through the pieces that are left."""
        started = self._started
        position = started.position
        async with writing(self._store) as session:
            before = await operations.get(session, started.id)
        if before is not None:  # another process has begun it
            self._done = before.done
            self._reasons = {RefusalReason(reason): count for reason, count in before.reasons.items()}
            self._refusals = list(before.refusals)
        for piece in sliced(started.ids[position:], PIECE):
            report = await self._act(list(piece))
            self._add(report, len(piece))
            behind = position + len(piece)
            if not await self._advance(position, behind, report):
                return
            position = behind
        await self._end("DONE")

    async def _advance(self, position: int, behind: int, report: BulkReport) -> bool:
        async with writing(self._store) as session:
            goes_on = await operations.advance(
                session,
                self._started.id,
                before=position,
                behind=behind,
                done=report.done,
                requested=report.requested,
                reasons=self._reasons,
                refusals=self._refusals,
            )
        if not goes_on and behind < len(self._started.ids):
            await self._end("STOPPED")
            return False
        return True

    async def _end(self, state: str) -> None:
        refused = sum(self._reasons.values())
        outcome = f"{state.lower()}: {self._done:,} done, {refused:,} refused"
        async with writing(self._store) as session:
            await operations.end(session, self._started.id, state, outcome)

    async def _act(self, ids: list[int]) -> BulkReport:
        arguments = self._started.arguments
        if FINGERPRINT in arguments:
            async with writing(self._store) as session:
                ids = await keep_group_jobs(session, str(arguments[FINGERPRINT]), ids)
        chosen = self._store.select(ids if self._wanted is None else replace(self._wanted, ids=ids))
        return await _acted(chosen, self._started.action, arguments)

    def _add(self, report: BulkReport, size: int) -> None:
        self._done += report.done
        for reason, count in report.reasons.items():
            self._reasons[reason] = self._reasons.get(reason, 0) + count
        if report.matched < size:  # the query does not mean them any more
            changed = RefusalReason.CHANGED
            self._reasons[changed] = self._reasons.get(changed, 0) + size - report.matched
        self._refusals += report.refusals[: REFUSALS_KEPT - len(self._refusals)]


async def _acted(chosen: Selection, action: str, arguments: Mapping[str, Any]) -> BulkReport:
    match action:
        case "cancel":
            return await chosen.cancel()
        case "retry":
            return await chosen.retry(force=bool(arguments.get("force")))
        case "delete":
            return await chosen.delete(waiting=bool(arguments.get("waiting")))
        case "purge" if arguments.get("how") == "delete":
            return await chosen.delete(waiting=True)
        case "purge":
            return await chosen.cancel()
        case "move":
            return await chosen.move(str(arguments["queue"]))
        case _:
            return await chosen.prioritize(int(arguments["priority"]))


assert IDS_KEPT >= PIECE  # noqa: S101  # a report of one piece names every refusal
