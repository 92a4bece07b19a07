"""Jobs, outcomes and an executor without a database: what several tests of this floor need."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from pqrun.job.outcome import Outcome
from pqrun.job.policy import BackoffPolicy
from pqrun.job.record import Claim, Job
from pqrun.job.state import Status
from pqrun.run.attempt import Surroundings
from pqrun.run.events import Events
from pqrun.run.execute import Executor
from pqrun.run.handler import Handler
from pqrun.run.lowlevel import LowLevelHandler, wrap
from pqrun.run.newer import NewerJobs
from pqrun.store import PgJobStore
from pqrun.store.ports import AnyConnection, AnySyncConnection
from tests.support.jobs import Noted, job_record
from tests.support.waiting import Recorder, wait_until

E = TypeVar("E")

SECRET = "payload-nobody-may-see"


def make_job(job_id: int = 1, **changes: Any) -> Job:
    """A claimed job; its claim has the number of the job plus 1000."""
    return job_record(job_id, **{"payload_json": f'{{"secret": "{SECRET}"}}', **changes})


def claim_of(job: Job) -> Claim:
    """The claim that ``make_job`` gave."""
    return Claim(job.id, job.claim_id or 0)


class Completions:
    """Stands for the store of ``ctx.complete``: everything is written, unless told otherwise."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []  # raised by the next looks, in order
        self.is_committed = True
        self.found: Status | None = None  # what a reaper has written instead
        self.written: list[Claim] = []

    async def complete(
        self, claim: Claim, result: str | None, connection: AnyConnection | None, *, duration_ms: int
    ) -> None:
        self.written.append(claim)

    def complete_sync(
        self, claim: Claim, result: str | None, connection: AnySyncConnection, *, duration_ms: int
    ) -> None:
        self.written.append(claim)

    async def find_claim(self, claim: Claim) -> Status | None:
        if self.failures:
            raise self.failures.pop(0)
        return Status.DONE if self.is_committed and claim in self.written else self.found


class Bench:
    """A real executor whose outcomes end in a list."""

    def __init__(
        self,
        *handlers: Handler,
        concurrency: int = 1,
        grace: float = 5.0,
        backoff: BackoffPolicy | None = None,
        state: object = None,
        deliver_and_wait: Callable[[Job, Outcome], Awaitable[None]] | None = None,
        **functions: LowLevelHandler,
    ) -> None:
        served: Mapping[str, Handler] = {
            **{handler.job_type: handler for handler in handlers},
            **{name: wrap(name, function) for name, function in functions.items()},
        }
        self.events = Events()
        self.heard = Recorder(self.events)
        self.delivered: list[tuple[Job, Outcome]] = []
        self.completions = Completions()
        self.noted = Noted()
        self.rooms = 0
        self.is_backlogged = False
        store = PgJobStore("postgresql://localhost/never_opened")
        self.executor = Executor(
            handlers=served,
            around=Surroundings(
                store, "w", state, self.completions, backoff or BackoffPolicy(), NewerJobs(self.events), self.noted
            ),
            concurrency=concurrency,
            grace_seconds=grace,
            events=self.events,
            deliver=lambda job, outcome: self.delivered.append((job, outcome)),
            deliver_and_wait=deliver_and_wait,
            on_room=self._on_room,
            is_backlogged=lambda: self.is_backlogged,
        )

    def _on_room(self) -> None:
        self.rooms += 1

    async def outcomes(self, count: int = 1) -> list[Outcome]:
        """Wait for so many outcomes and return all there are."""
        await wait_until(lambda: len(self.delivered) >= count)
        return [outcome for _, outcome in self.delivered]

    async def outcome_of(self, job: Job, kind: type[E]) -> E:
        """Start one job, and return its outcome, which must be of this kind."""
        self.executor.take([job])
        outcome = (await self.outcomes())[-1]
        assert isinstance(outcome, kind)
        return outcome

    async def wait_idle(self) -> None:
        """Wait until no handler runs in a slot."""
        assert await self.executor.wait_idle(30)
