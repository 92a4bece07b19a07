"""One action on many jobs, in pieces.

Each piece is one short transaction that locks its rows in the order of ids and passes those that another transaction has. What was passed
is looked at in a new statement, which says why; what could be done after all is tried again.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

from pqrun.errors import StoreError
from pqrun.job.bulk import Action, BulkProgress, BulkReport, Refusal, RefusalReason, Seen, Tally, refusal_reason
from pqrun.job.state import Status
from pqrun.store.link import Link
from pqrun.store.selecting import LOCK_NOT_AVAILABLE, LOCK_SECONDS, PIECE_ROWS, look, sliced

__all__ = ["BulkRun"]

BUSY_SECONDS = 5.0
"""How long jobs that others hold are tried again at the end, and how much waiting for their keys a run takes upon itself before that."""

BUSY_LOOK_SECONDS: Final = 0.05

BUSY_KEPT: Final = 10_000
"""So many are tried again; further ones are reported at once."""

STATEMENTS: Final = {
    "cancel": "cancel_many",
    "retry": "retry_many",
    "delete": "delete_many",
    "move": "relane_many",
    "prioritize": "relane_many",
}


class BulkRun:
    """See the module's docstring. ``chosen``: the states that were asked for."""

    def __init__(
        self,
        link: Link,
        action: Action,
        chosen: Collection[Status],
        *,
        dry_run: bool,
        on_progress: Callable[[BulkProgress], None],
    ) -> None:
        self._link = link
        self._action = action
        self._chosen = chosen
        self._statuses = sorted(action.takes.intersection(chosen))
        self._dry_run = dry_run
        self._on_progress = on_progress
        self._tally = Tally()
        self._busy: list[int] = []
        self._waited = 0.0

    async def take(self, ids: Sequence[int], *, looked: int, total: int | None) -> None:
        """Do it to these jobs, ascending; ``looked``: jobs that were looked at so far, of ``total``, for the progress."""
        for piece in sliced(ids, PIECE_ROWS):
            await self._take_piece(piece)
            self._tell(looked, total)
        if not ids:
            self._tell(looked, total)

    async def finish(self) -> BulkReport:
        """Try those again that were held, for some seconds at most; return the report."""
        clock = asyncio.get_running_loop().time
        give_up = clock() + BUSY_SECONDS
        while self._busy and clock() < give_up:
            await asyncio.sleep(BUSY_LOOK_SECONDS)
            again, self._busy = self._busy, []
            self._waited = 0.0
            for piece in sliced(again, PIECE_ROWS):
                if clock() < give_up:
                    await self._take_piece(piece)
                else:
                    self._busy += piece
        for job_id in self._busy:
            self._tally.refuse(Refusal(job_id, RefusalReason.BUSY))
        return self._tally.report(self._action, dry_run=self._dry_run)

    @property
    def done(self) -> int:
        """How many jobs it has been done to."""
        return 0 if self._dry_run else self._tally.done

    def _tell(self, looked: int, total: int | None) -> None:
        self._on_progress(BulkProgress(looked=looked, total=total, done=self._tally.done, refused=self._tally.refused))

    async def _take_piece(self, ids: Sequence[int]) -> None:
        done = {} if self._dry_run or not self._statuses else await self._act(ids)
        self._tally.did(done, requested=sum(done.values()))
        left = [job_id for job_id in ids if job_id not in done]
        if not left:
            return
        rows = await look(self._link, "inspect_many", left)
        seen = {row["id"]: Seen(Status(row["status"]), row["holder"]) for row in rows}
        for job_id in left:
            self._judge(job_id, seen.get(job_id))

    def _judge(self, job_id: int, seen: Seen | None) -> None:
        reason = refusal_reason(self._action, self._chosen, seen)
        if reason is not None:
            holder = seen.holder if seen is not None and reason is RefusalReason.KEY_TAKEN else None
            self._tally.refuse(Refusal(job_id, reason, holder))
        elif self._dry_run:
            is_asked = self._action.name == "cancel" and seen is not None and seen.status is Status.RUNNING
            self._tally.did([job_id], requested=is_asked)
        elif len(self._busy) < BUSY_KEPT:
            self._busy.append(job_id)
        else:
            self._tally.refuse(Refusal(job_id, RefusalReason.BUSY))

    async def _act(self, ids: Sequence[int]) -> dict[int, bool]:
        """Return the jobs to which it was done, and whether that was a request to their worker."""
        more = (self._action.queue, self._action.priority) if self._action.name in ("move", "prioritize") else ()
        try:
            rows = await self._link.run(STATEMENTS[self._action.name], ids, self._statuses, *more)
        except StoreError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            self._waited += LOCK_SECONDS
        else:
            return {row["id"]: row["is_requested"] for row in rows}
        # Somebody is taking the key of one of them, and has not committed. The others need not wait for that: halve until it is alone.
        if len(ids) == 1 or self._waited >= BUSY_SECONDS:
            return {}
        middle = len(ids) // 2
        return {**await self._act(ids[:middle]), **await self._act(ids[middle:])}
