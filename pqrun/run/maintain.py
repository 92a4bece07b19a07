"""Maintenance: take back the jobs of dead workers, sweep for what nobody owns, and remove old history.

Every decision is taken by ``pqrun.job.outcome`` and written by the one settle statement, fenced by claim, in pieces; a piece that fails
is looked at again in the next round. Any number of workers may do this at once: rows that another holds are skipped.
"""

import logging
import time
from collections.abc import Callable
from typing import Protocol

from pqrun.errors import HandlerTimeout
from pqrun.job import outcome as outcomes
from pqrun.job.failure import FailureKind, failure_of
from pqrun.job.outcome import Failed, Retrying, decide_after_failure
from pqrun.job.policy import BackoffPolicy, LoopErrorPolicy, judge_retry_delay
from pqrun.job.rules import RetryRules
from pqrun.job.storable import error_summary, error_text, one_line
from pqrun.run.events import Events, Pruned, Recovered, Unserved
from pqrun.run.service import Service
from pqrun.store.attempts import PrunedAttempts
from pqrun.store.maintaining import Overdue, Reaped
from pqrun.store.maintaining import Pruned as PrunedPiece

__all__ = ["Maintenance", "Pruner", "Reaper", "UnservedReport"]

ORPHAN_MARGIN_SECONDS = 10.0
"""Beyond its timeout, before a RUNNING row of nobody's is taken back."""

OVERDUE_MARGIN_SECONDS = 11.0
"""Beyond its timeout, before a reaper steps in for a living worker: 1 s that a claim may wait for a slot, and 10 s."""

PIECE_ROWS = 500

DEAD_LOOK_SECONDS = 60.0
"""How long to look every second after a worker died: what is left of it may have rows locked for a while, which each look passes over."""

PRUNE_SECONDS = 60.0
"""Between two rounds of retention."""

AUDIT_SECONDS = 90 * 86_400.0
"""How long the audit log of the pages and their ended operations are kept, by workers that remove old jobs."""

PRUNE_PIECE_SECONDS = 0.05
"""Between two pieces of one round: vacuum and everybody else get their turn."""


_LOGGER = logging.getLogger("pqrun")


class Maintenance(Protocol):
    """What maintenance needs of the store."""

    async def reap_lost(self) -> list[Reaped]:
        """Take back a piece of dead workers' jobs."""
        ...

    async def reap_orphans(self, *, stale_seconds: float, margin_seconds: float) -> list[Reaped]:
        """Take back a piece of nobody's jobs."""
        ...

    async def reap_overdue(
        self, *, margin_seconds: float, decide: Callable[[Overdue], Retrying | Failed]
    ) -> list[Reaped]:
        """Time out a piece of jobs that their worker does not."""
        ...

    async def forget_workers(self) -> list[int]:
        """Remove dead workers' rows."""
        ...

    async def find_unserved(self) -> list[tuple[str, str]]:
        """Return (queue, job_type) pairs that wait and that no living worker serves."""
        ...

    async def prune(self, *, age_seconds: float) -> PrunedPiece:
        """Delete a piece of history."""
        ...

    async def prune_attempts(self, *, after_job_id: int) -> PrunedAttempts:
        """Delete a piece of the attempts whose jobs are gone."""
        ...

    async def prune_audit(self, *, age_seconds: float) -> PrunedPiece:
        """Delete a piece of the audit log and of ended operations."""
        ...


class Reaper:
    """Looks for dead workers' jobs when one was found dead, and for everything else every ``sweep_seconds``."""

    def __init__(
        self,
        store: Maintenance,
        *,
        sweep_seconds: float,
        stale_seconds: float,
        backoff: BackoffPolicy,
        backoff_of: Callable[[str], BackoffPolicy | None],
        rules_of: Callable[[str], RetryRules | None],
        events: Events,
        policy: LoopErrorPolicy,
    ) -> None:
        self._store = store
        self._sweep_seconds = sweep_seconds
        self._stale_seconds = stale_seconds
        self._backoff = backoff
        self._backoff_of = backoff_of
        self._rules_of = rules_of
        self._events = events
        self._next_sweep = 0.0
        self._look_until = time.monotonic() + DEAD_LOOK_SECONDS  # some may have died before this worker started
        self.service = Service("reap", self._tick, events=events, policy=policy)

    def on_dead(self) -> None:
        """A worker died, or left with jobs in hand."""
        self._look_until = time.monotonic() + DEAD_LOOK_SECONDS
        self.service.wake()

    async def _tick(self) -> float:
        found = await self._reap_lost()
        now = time.monotonic()
        if now >= self._next_sweep:
            await self._sweep()
            self._next_sweep = now + self._sweep_seconds
        until_sweep = max(self._next_sweep - time.monotonic(), 0.0)
        return min(until_sweep, 1.0) if found or now < self._look_until else until_sweep

    async def _reap_lost(self) -> bool:
        found = False
        while reaped := await self._store.reap_lost():
            found = True
            self._tell(reaped)
            if len(reaped) < PIECE_ROWS:
                break
        return found

    async def _sweep(self) -> None:
        while reaped := await self._store.reap_orphans(
            stale_seconds=self._stale_seconds, margin_seconds=ORPHAN_MARGIN_SECONDS
        ):
            self._tell(reaped)
        while reaped := await self._store.reap_overdue(
            margin_seconds=OVERDUE_MARGIN_SECONDS, decide=self._decide_overdue
        ):
            self._tell(reaped)
        await self._store.forget_workers()

    def _decide_overdue(self, overdue: Overdue) -> Retrying | Failed:
        timeout = HandlerTimeout(
            f"{overdue.job_type} ran longer than its timeout of {overdue.timeout_seconds:g} s, and its worker could not stop it"
        )
        text, failure = error_text(timeout), failure_of(timeout, FailureKind.TIMEOUT)
        rules = self._rules_of(overdue.job_type)
        if rules is not None and not rules.allow(timeout):
            return Failed(overdue.claim, None, text, failure)
        if overdue.backoff_seconds:
            delays = overdue.backoff_seconds
            delay = delays[min(overdue.counts.attempts, len(delays)) - 1]
        else:
            policy = self._backoff_of(overdue.job_type) or self._backoff
            judged = judge_retry_delay(policy, overdue.counts.attempts)
            if judged.complaint is not None:
                _LOGGER.warning(
                    "backoff of %s replaced by the default: %s", one_line(overdue.job_type), judged.complaint
                )
            delay = judged.value
        return decide_after_failure(
            overdue.claim, overdue.counts, error=text, failure=failure, delay_seconds=delay, duration_ms=None
        )

    def _tell(self, reaped: list[Reaped]) -> None:
        for job_type, worker_id, outcome, settled, queue in reaped:
            error = one_line(error_summary(outcome.error))
            is_lost = isinstance(outcome, outcomes.Recovered) or (isinstance(outcome, Failed) and outcome.is_lost)
            status = settled.status.value
            self._events.emit(Recovered(settled.claim.job_id, job_type, worker_id, status, error, queue, is_lost))


class UnservedReport:
    """Tells once of each queue and job_type that waits and that no living worker serves; looks every ``sweep_seconds``."""

    def __init__(self, store: Maintenance, *, sweep_seconds: float, events: Events, policy: LoopErrorPolicy) -> None:
        self._store = store
        self._sweep_seconds = sweep_seconds
        self._events = events
        self._told: set[tuple[str, str]] = set()
        self.service = Service("report", self._tick, events=events, policy=policy)

    async def _tick(self) -> float:
        for pair in await self._store.find_unserved():
            if pair not in self._told:
                self._told.add(pair)
                self._events.emit(Unserved(*pair))
        return self._sweep_seconds


class Pruner:
    """Retention: removes finished jobs older than ``age_seconds``, piece by piece, one worker at a time; None keeps all.

    With them goes what the pages noted longer ago than AUDIT_SECONDS; it is kept too where everything is.
    And what plain SQL left behind: attempts whose job it deleted. Each round looks at a piece of those, and at the next as long as it
    finds such; the cursor is this worker's own, and is lost with it.
    """

    def __init__(
        self, store: Maintenance, *, age_seconds: float | None, events: Events, policy: LoopErrorPolicy
    ) -> None:
        self._store = store
        self._age_seconds = age_seconds
        self._events = events
        self._deleted = 0  # in the present round
        self._after_job_id = 0
        self.service = Service("prune", self._tick, events=events, policy=policy)

    async def _tick(self) -> float:
        if self._age_seconds is not None:
            piece = await self._store.prune(age_seconds=self._age_seconds)
            self._deleted += piece.deleted
            if piece.deleted:
                return PRUNE_PIECE_SECONDS
            if self._deleted:
                self._events.emit(Pruned(self._deleted))
                self._deleted = 0
            if (await self._store.prune_audit(age_seconds=AUDIT_SECONDS)).deleted:
                return PRUNE_PIECE_SECONDS
        return PRUNE_PIECE_SECONDS if await self._has_removed_attempts() else PRUNE_SECONDS

    async def _has_removed_attempts(self) -> bool:
        piece = await self._store.prune_attempts(after_job_id=self._after_job_id)
        if piece.is_mine:
            self._after_job_id = piece.last_job_id or 0  # from the start again
        return piece.deleted > 0
