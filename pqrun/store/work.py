"""A worker's side of the store: every statement of fetching, settling, renewing and maintaining, on the right connection.

Connections of a worker with a DSN: one that claims and renews, one that settles and completes, one for maintenance while there is any,
one of the keeper; the pool serves handlers and results. With a handed-in pool the settling one is kept, and claims and maintenance borrow.
None of these statements runs on the pool as it is: there a plan made while the table was empty could be kept, and scan it whole.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from pqrun.errors import ClaimLost, CompletionRefused
from pqrun.job.definition import ScheduleDefinition
from pqrun.job.outcome import Done, Failed, Outcome, Retrying
from pqrun.job.progress import Report
from pqrun.job.record import Claim, Job
from pqrun.job.schedule import preview
from pqrun.job.state import Status
from pqrun.store import attempts, checking, maintaining, reporting, schedules, settling, statistics
from pqrun.store.attempts import PrunedAttempts
from pqrun.store.checking import Noted
from pqrun.store.claiming import ClaimBatch, Claimer, Lane, Promotion, Survey
from pqrun.store.enqueueing import Runs
from pqrun.store.failure import translating
from pqrun.store.link import PLANNER_SETTINGS
from pqrun.store.maintaining import Overdue, Pruned, Reaped
from pqrun.store.pg import PgJobStore
from pqrun.store.ports import AnyConnection, AnySyncConnection
from pqrun.store.reporting import Swept
from pqrun.store.schedules import DueSchedules, Fired, Firing
from pqrun.store.settling import Renewal, Settled
from pqrun.store.statistics import Minute

__all__ = ["WorkStore"]

SCHEDULE_SETTINGS = f"{PLANNER_SETTINGS}; SET lock_timeout = 1000"
"""A dedupe key that somebody else's transaction is about to take may hold up the schedules beside it for so many milliseconds."""

DECLARE_TRIES = 3
"""How often a definition is declared that another worker writes at the same moment."""


class WorkStore:
    """See the module's docstring. ``register`` must be called, by the keeper's news, before anything is claimed."""

    def __init__(
        self, store: PgJobStore, *, worker_id: str, is_awaited: Callable[[int], bool] = lambda _job_id: False
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._is_awaited = is_awaited  # whether somebody is known to wait for this job's end
        self._claims = store.open_link("claim", kept=False)
        self._settles = store.open_link("settle", kept=True)
        self._maintenance = store.open_link("maintain", kept=False)
        self._schedules = store.open_link("schedule", kept=False, settings=SCHEDULE_SETTINGS)
        self._has_schedules = (
            False  # until one is seen, looks travel with maintenance: no connection for those who have none
        )
        self._claimer: Claimer | None = None
        self._worker = 0

    def register(self, worker: int) -> None:
        """Claim for this row of the registry from now on."""
        self._worker = worker
        self._claimer = Claimer(self._claims, worker=worker, worker_id=self._worker_id)

    @property
    def worker(self) -> int:
        """The row of the registry that is claimed for."""
        return self._worker

    @property
    def is_registered(self) -> bool:
        """Whether there is a row to claim for."""
        return self._claimer is not None

    async def close(self, timeout: float) -> None:
        """Give the kept connections up."""
        for link in (self._claims, self._settles, self._maintenance, self._schedules):
            await link.close(timeout)

    @property
    def _registered(self) -> Claimer:
        assert self._claimer is not None  # noqa: S101  # the fetcher is started when the keeper has registered
        return self._claimer

    # Fetching.

    async def claim(
        self,
        lanes: Sequence[tuple[Lane, int]],
        types: Sequence[str],
        proven: Sequence[str],
        alive: Sequence[int],
        *,
        limit: int,
        look: int,
        free: int,
    ) -> ClaimBatch:
        """Claim up to ``limit`` jobs; see ``Claimer.claim``."""
        return await self._registered.claim(lanes, types, proven, alive, limit=limit, look=look, free=free)

    async def claim_suspect(
        self, queues: Sequence[str] | None, types: Sequence[str], alive: Sequence[int]
    ) -> Job | None:
        """Claim one job that was lost before."""
        return await self._registered.claim_suspect(queues, types, alive)

    async def find_forgotten(self, known: Sequence[Claim]) -> list[Job]:
        """Return jobs claimed for this worker that it does not know of."""
        return await self._registered.find_forgotten(known)

    async def survey(self, queues: Sequence[str] | None) -> Survey:
        """List lanes that have jobs."""
        return await self._registered.survey(queues)

    async def promote(self, after: datetime | None) -> Promotion:
        """Make due jobs READY."""
        return await self._registered.promote(after)

    # Settling.

    async def settle(self, outcomes: list[Outcome], awaited: list[int]) -> list[Settled]:
        """Write outcomes; return those that held."""
        return await settling.settle(self._settles, outcomes, awaited=awaited)

    async def find_claim(self, claim: Claim) -> Status | None:
        """Return the state that this claim finished its job with, if it did."""
        return await settling.find_claim(self._settles, claim)

    async def complete(
        self, claim: Claim, result: str | None, connection: AnyConnection | None, *, duration_ms: int
    ) -> None:
        """Write DONE within the caller's transaction, or at once without a connection."""
        if connection is None:
            await self._complete(self._settles, Done(claim, duration_ms, result))
            return
        session = self._store.join(connection)
        with translating(self._store.schema):
            await self._complete(session, Done(claim, duration_ms, result))

    def complete_sync(
        self, claim: Claim, result: str | None, connection: AnySyncConnection, *, duration_ms: int
    ) -> None:
        """Write DONE within the caller's transaction on a synchronous connection; called in a handler's thread."""
        from pqrun.store.foreign.driving import run_to_end  # only for those who have such a connection

        run_to_end(self._complete(self._store.join_sync(connection), Done(claim, duration_ms, result)))

    async def _complete(self, session: Runs, outcome: Done) -> None:
        claim = outcome.claim
        # Who begins to wait between this and a late commit of the caller's is told by the next poll.
        awaited = [claim.job_id] if self._is_awaited(claim.job_id) else []
        settled = await settling.settle(session, [outcome], awaited=awaited)
        if not settled:
            raise ClaimLost(f"job {claim.job_id} is no longer this worker's: roll the transaction back", claim.job_id)
        if settled[0].status is not Status.DONE:
            raise CompletionRefused(f"job {claim.job_id} was asked to cancel: roll the transaction back", claim.job_id)

    async def renew(self, claims: Sequence[Claim]) -> Renewal:
        """Ask which claims hold."""
        return await settling.renew(self._claims, claims)

    async def report(self, reports: Mapping[Claim, Report]) -> set[Claim]:
        """Write reports of progress; return the claims whose rows were locked."""
        return await reporting.report(self._claims, reports)

    # Maintaining.

    async def reap_lost(self) -> list[Reaped]:
        """Take back a piece of dead workers' jobs."""
        return await maintaining.reap_lost(self._maintenance)

    async def reap_orphans(self, *, stale_seconds: float, margin_seconds: float) -> list[Reaped]:
        """Take back a piece of nobody's jobs."""
        return await maintaining.reap_orphans(
            self._maintenance, stale_seconds=stale_seconds, margin_seconds=margin_seconds
        )

    async def reap_overdue(
        self, *, margin_seconds: float, decide: Callable[[Overdue], Retrying | Failed]
    ) -> list[Reaped]:
        """Time out a piece of jobs that their worker does not."""
        return await maintaining.reap_overdue(self._maintenance, margin_seconds=margin_seconds, decide=decide)

    async def forget_workers(self) -> list[int]:
        """Remove dead workers' rows."""
        return await maintaining.forget_workers(self._maintenance)

    async def find_unserved(self) -> list[tuple[str, str]]:
        """Return (queue, job_type) pairs that wait and that no living worker serves."""
        return await maintaining.find_unserved(self._maintenance)

    async def note_shapes(self, shapes: Iterable[Noted]) -> None:
        """Keep what the payloads of tasks look like."""
        await checking.note_shapes(self._maintenance, shapes)

    async def prune(self, *, age_seconds: float) -> Pruned:
        """Delete a piece of history."""
        return await maintaining.prune(self._maintenance, age_seconds=age_seconds)

    async def prune_audit(self, *, age_seconds: float) -> Pruned:
        """Delete a piece of the audit log."""
        return await maintaining.prune_audit(self._maintenance, age_seconds=age_seconds)

    async def sweep_progress(self, after: int) -> Swept:
        """Delete reports whose jobs are gone, in a piece."""
        return await reporting.sweep(self._maintenance, after)

    async def prune_attempts(self, *, after_job_id: int) -> PrunedAttempts:
        """Delete a piece of the attempts whose jobs are gone."""
        return await attempts.prune_attempts(self._maintenance, after_job_id=after_job_id)

    # Counting.

    async def add_statistics(self, minutes: Sequence[Minute]) -> float:
        """Add what was counted; return the database's clock."""
        return await statistics.add_minutes(self._maintenance, minutes)

    async def prune_statistics(self, *, age_seconds: float) -> bool:
        """Delete a piece of what is older; return whether there may be more."""
        return await statistics.prune_minutes(self._maintenance, age_seconds=age_seconds)

    # Scheduling.

    async def declare_schedules(
        self, definitions: Sequence[ScheduleDefinition], app: str
    ) -> list[tuple[ScheduleDefinition, str]]:
        """Store what differs from the last code seen; return those definitions, each with "new", "changed", "restored" or "taken"."""
        done: list[tuple[ScheduleDefinition, str]] = []
        pending = list(definitions)
        for _ in range(DECLARE_TRIES):
            known = await schedules.touch(self._schedules, pending, app)
            pending = [definition for definition in pending if definition.name not in known]
            if not pending:
                break
            clock = (await schedules.find(self._schedules, [])).clock
            changes = [
                (one, await schedules.declare(self._schedules, one, preview(one.rule, clock, 1)[0], app))
                for one in pending
            ]
            done += [(definition, change) for definition, change in changes if change != "known"]
            pending = [definition for definition, change in changes if change == "known"]
        return done

    async def orphan_schedules(self, app: str, names: Sequence[str]) -> list[str]:
        """Retire what the app's code, which declares these names, has dropped; return the names of those."""
        return await schedules.orphan(self._schedules, app, names, self._worker)

    async def find_due_schedules(self, job_types: Sequence[str], app: str | None, names: Sequence[str]) -> DueSchedules:
        """Look for schedules of these job types whose time has come."""
        link = self._schedules if self._has_schedules else self._maintenance
        found = await schedules.find_due(link, job_types, app, names)
        self._has_schedules = self._has_schedules or bool(found.due) or found.next_in_seconds is not None
        return found

    async def fire_schedules(self, firings: Sequence[Firing]) -> list[Fired]:
        """Insert the jobs of due schedules and move those on, in one statement; return those that nobody else had moved."""
        return await schedules.fire(self._schedules, firings)
