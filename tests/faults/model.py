"""What a job is (the table of states, the fence, the counts), as a small model in memory, without a line of the store's own code.

Time is a number of seconds that only ``pass_time`` moves. What is to come or has an age is kept far from any limit that is asked for,
so the milliseconds that really pass between two steps decide nothing.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from pqrun.job.outcome import CancelOutcome
from pqrun.job.record import Claim
from pqrun.job.state import Status

__all__ = ["RELEASES_FREE", "SNOOZES_FREE", "Model", "ModelJob", "ModelWorker", "Opened", "Spec"]

RELEASES_FREE = 10
"""Given back so many times after its start, a job's further starts count."""

ATTEMPTS_KEPT = 20
"""Of a job, the last ones that did not succeed."""

SNOOZES_FREE = 1_000
"""Put off so many times, a job's further snoozes are failures."""


@dataclass(frozen=True)
class Spec:
    """A job to enqueue; ``number`` is its payload, and tells it from all others."""

    number: int
    job_type: str = "a"
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 2
    key: str | None = None
    timeout: float | None = None
    delay: float | None = None

    @property
    def slot(self) -> tuple[str, str] | None:
        """What must be unique among active jobs."""
        return None if self.key is None else (self.job_type, self.key)


@dataclass(kw_only=True)
class ModelJob:
    """One job as it must be."""

    id: int
    spec: Spec
    status: Status
    due_in: float = 0.0
    """SCHEDULED: seconds until it is due; due when not above zero."""
    age: float = 0.0
    """Seconds since it was claimed (RUNNING), or finished."""
    attempts: int = 0
    lost: int = 0
    releases: int = 0
    snoozes: int = 0
    claim_id: int | None = None
    worker: int | None = None
    locked_by: str | None = None
    is_asked: bool = False
    error: str | None = None
    result: str | None = None
    progress: tuple[int, int, int] | None = None
    """Of the last report: claim, attempt, percent."""
    kept: list[str] = field(default_factory=list)
    """Attempts that did not succeed: number, kind, and what the job became."""
    place: int | None = None
    """As last seen in the table; None: not seen yet."""
    is_replaced: bool = False
    """Its place must be a new one, behind the old."""

    def unlock(self) -> None:
        """Forget who ran it."""
        self.worker = self.locked_by = None

    def finish(self, status: Status, error: str | None = None) -> Status:
        """The end, with the fence left on it."""
        self.status, self.age = status, 0.0
        self.error = error or self.error
        if status is not Status.DONE:
            self.unlock()
        return status

    def stop(self, error: str | None = None) -> Status:
        """Cancelled while it ran."""
        status = self.finish(Status.CANCELLED, error)
        self.keep("cancelled", self.attempts)
        return status

    def keep(self, kind: str, number: int) -> Status:
        """Remember the attempt, now that its end is written."""
        self.kept = [*self.kept, f"{number} {kind} {self.status}"][-ATTEMPTS_KEPT:]
        return self.status

    def wait(self, status: Status, error: str | None = None) -> Status:
        """Back among those that wait, claimed by nobody."""
        self.status, self.claim_id = status, None
        self.error = error or self.error
        self.unlock()
        return status


@dataclass
class ModelWorker:
    """A row of the registry."""

    worker_id: str
    beat: int = 0
    is_dead: bool = False
    grave_age: float = 0.0
    has_lock: bool = True


@dataclass
class Opened:
    """A transaction under way: what becomes true with its commit, and what it locks until then."""

    commits: bool
    created: list[ModelJob] = field(default_factory=list)
    completed: dict[int, str] = field(default_factory=dict)
    """Job → its result."""
    locked: set[int] = field(default_factory=set)


@dataclass
class Model:
    """All jobs, all workers, and the transaction that is open, if one is."""

    jobs: dict[int, ModelJob] = field(default_factory=dict)
    workers: dict[int, ModelWorker] = field(default_factory=dict)
    opened: Opened | None = None

    # Looking.

    def is_locked(self, job_id: int) -> bool:
        """Whether the open transaction holds the row."""
        return self.opened is not None and (job_id in self.opened.locked or job_id in self.opened.completed)

    def is_key_busy(self, slot: tuple[str, str] | None) -> bool:
        """Whether who wants this key must wait for the end of the open transaction."""
        if slot is None or self.opened is None:
            return False
        completed = (self.jobs[job_id] for job_id in self.opened.completed)
        return any(job.spec.slot == slot for job in (*self.opened.created, *completed))

    def holder(self, slot: tuple[str, str] | None, *, within: bool = False) -> int | None:
        """The active job that has this key, as seen from outside or ``within`` the open transaction."""
        for job in self._visible(within):
            if slot is not None and job.spec.slot == slot and job.status.is_active:
                return job.id
        return None

    def _visible(self, within: bool) -> Iterator[ModelJob]:
        if self.opened is None or not within:
            yield from self.jobs.values()
            return
        yield from (job for job in self.jobs.values() if job.id not in self.opened.completed)
        yield from self.opened.created

    def held(self, claim: Claim) -> ModelJob | None:
        """The job that this claim still holds."""
        job = self.jobs.get(claim.job_id)
        return job if job and job.status is Status.RUNNING and job.claim_id == claim.claim_id else None

    def queue_of(self, lane: tuple[str, int], *, suspect: bool = False) -> list[ModelJob]:
        """READY jobs of a lane, first come first."""
        ready = [j for j in self.jobs.values() if j.status is Status.READY and (j.lost > 0) is suspect]
        return sorted((j for j in ready if (j.spec.queue, j.spec.priority) == lane), key=lambda j: j.place or 0)

    def claimable(
        self, lanes: Sequence[tuple[str, int]], types: Collection[str], proven: Collection[str], limit: int, free: int
    ) -> list[int]:
        """What a claim from the start must bring, in order."""
        found: list[int] = []
        served = [job for lane in lanes for job in self.queue_of(lane) if job.spec.job_type in types]
        for rank, job in enumerate(served, 1):
            if rank > free and (job.spec.max_attempts == 1 or job.spec.job_type not in proven):
                break
            if not self.is_locked(job.id):
                found.append(job.id)
        return found[:limit]

    # Changing.

    def insert(self, job_id: int, spec: Spec, *, within: bool = False) -> None:
        """A new job, SCHEDULED or READY by its delay."""
        status = Status.SCHEDULED if spec.delay else Status.READY
        job = ModelJob(id=job_id, spec=spec, status=status, due_in=spec.delay or 0.0, is_replaced=True)
        if self.opened is not None and within:
            self.opened.created.append(job)
        else:
            self.jobs[job_id] = job

    def claim(self, claim: Claim, worker: int) -> ModelJob:
        """READY → RUNNING."""
        job = self.jobs[claim.job_id]
        assert job.status is Status.READY
        job.status, job.age = Status.RUNNING, 0.0
        job.attempts += 1
        assert job.attempts <= job.spec.max_attempts
        job.claim_id, job.worker, job.locked_by = claim.claim_id, worker, self.workers[worker].worker_id
        return job

    def promote(self) -> int:
        """SCHEDULED → READY for what is due and not locked."""
        due = [j for j in self.jobs.values() if j.status is Status.SCHEDULED and j.due_in <= 0]
        for job in (free := [j for j in due if not self.is_locked(j.id)]):
            job.status, job.is_replaced = Status.READY, True
        return len(free)

    def done(self, job: ModelJob, result: str) -> Status:
        """The handler returned."""
        if job.is_asked:
            return job.stop()
        job.result = result
        return job.finish(Status.DONE)

    def fail(self, job: ModelJob, error: str, delay: float | None, kind: str = "error") -> Status:
        """The handler failed; no ``delay``: for good."""
        if job.is_asked:
            return job.stop(error)
        if delay is None or job.attempts >= job.spec.max_attempts:
            job.finish(Status.FAILED, error)
        else:
            job.due_in = delay
            job.wait(Status.SCHEDULED, error)
        return job.keep(kind, job.attempts)

    def snooze(self, job: ModelJob, error: str, delay: float) -> Status:
        """The handler puts it off; ``error``: of one snooze too many, which is a failure."""
        if job.snoozes >= SNOOZES_FREE:
            return self.fail(job, error, delay)
        if job.is_asked:
            return job.stop()
        job.attempts -= 1
        job.snoozes += 1
        job.due_in = delay
        return job.wait(Status.SCHEDULED)

    def release(self, job: ModelJob, *, started: bool) -> Status:
        """Given back on purpose."""
        counts = started and job.releases >= RELEASES_FREE
        error = "released at shutdown " if counts and job.attempts >= job.spec.max_attempts else None
        if job.is_asked:
            return job.stop(error) if started else job.finish(Status.CANCELLED)
        number = job.attempts
        if error is not None:
            job.finish(Status.FAILED, error)
        else:
            job.attempts -= 0 if counts else 1
            job.releases += started
            job.wait(Status.READY)
        return job.keep("released", number) if started else job.status

    def lose(self, job: ModelJob) -> Status:
        """Its worker is gone: the attempt counts, and so does the loss, whatever becomes of the job."""
        job.lost += 1
        error = f"lost its worker {'once' if job.lost == 1 else f'{job.lost} times'} "
        has_attempts = job.attempts < job.spec.max_attempts
        if job.is_asked:
            return job.stop(error)
        if has_attempts:
            job.wait(Status.READY, error)
        else:
            job.finish(Status.FAILED, error)
        return job.keep("lost", job.attempts)

    def report(self, claim: Claim, percent: int) -> bool:
        """A handler says how far it has come; False where its row is locked. Nothing of a claim that is lost."""
        job = self.held(claim)
        if job is None:
            return True
        if self.is_locked(job.id):
            return False
        job.progress = (claim.claim_id, job.attempts, percent)
        return True

    def cancel(self, job_id: int) -> CancelOutcome | None:
        """Cancel; None: locked, nothing is said yet."""
        job = self.jobs.get(job_id)
        if job is None:
            return CancelOutcome.NOT_FOUND
        if job.status.is_finished:
            return CancelOutcome.ALREADY_FINISHED
        if self.is_locked(job_id):
            return None
        if job.status is Status.RUNNING:
            job.is_asked = True
            return CancelOutcome.REQUESTED
        job.finish(Status.CANCELLED)
        return CancelOutcome.CANCELLED

    def retry(self, job_id: int, *, force: bool) -> str | int | None:
        """Retry; returns why it is refused (the id that holds the key, or a word), or None."""
        job = self.jobs.get(job_id)
        if job is None:
            return "missing"
        if not job.status.is_finished or (job.status is Status.DONE and not force):
            return "refused"
        if (holder := self.holder(job.spec.slot)) is not None:
            return holder
        job.wait(Status.READY)
        job.attempts = job.lost = job.releases = job.snoozes = 0
        job.result, job.is_asked, job.is_replaced = None, False, True
        job.progress = None
        return None

    def lost_jobs(self) -> list[ModelJob]:
        """RUNNING jobs of workers taken for dead, not locked."""
        dead = {number for number, worker in self.workers.items() if worker.is_dead}
        return [j for j in self._running() if j.worker in dead]

    def orphans(self, stale: float, margin: float) -> list[ModelJob]:
        """RUNNING jobs of nobody, old enough."""
        limits = ((j, stale if j.spec.timeout is None else j.spec.timeout + margin) for j in self._running())
        return [j for j, limit in limits if j.worker not in self.workers and j.age > limit]

    def overdue(self, margin: float) -> list[ModelJob]:
        """RUNNING jobs far beyond their timeout, of registered workers."""
        timed = ((j, j.spec.timeout) for j in self._running() if j.worker in self.workers)
        return [j for j, timeout in timed if timeout is not None and j.age > timeout + margin]

    def _running(self) -> list[ModelJob]:
        return [j for j in self.jobs.values() if j.status is Status.RUNNING and not self.is_locked(j.id)]

    def prune(self, age: float) -> int:
        """Finished jobs older than that are gone."""
        old = [j.id for j in self.jobs.values() if j.status.is_finished and j.age > age and not self.is_locked(j.id)]
        for job_id in old:
            del self.jobs[job_id]
        return len(old)

    def forget(self, grave: float) -> set[int]:
        """Graves that are old and empty are gone."""
        full = {j.worker for j in self.jobs.values() if j.status is Status.RUNNING}
        old = {n for n, w in self.workers.items() if w.is_dead and w.grave_age > grave and n not in full}
        for number in old:
            del self.workers[number]
        return old

    def end_transaction(self) -> None:
        """The open transaction commits or rolls back, as it was to."""
        opened, self.opened = self.opened, None
        if opened is None or not opened.commits:
            return
        for job_id, result in opened.completed.items():
            self.done(self.jobs[job_id], result)
        self.jobs |= {job.id: job for job in opened.created}

    def pass_time(self, seconds: float) -> None:
        """Everything is so much older."""
        for job in self.jobs.values():
            job.due_in -= seconds
            job.age += seconds
        for worker in self.workers.values():
            worker.grave_age += seconds if worker.is_dead else 0
