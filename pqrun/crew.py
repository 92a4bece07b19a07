"""The duties of one run of a worker, joined by callbacks: they do not know each other, this module knows them all."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta

import msgspec

from pqrun.config import WorkerSettings
from pqrun.installed import installed_version
from pqrun.job.definition import ScheduleDefinition
from pqrun.job.pause import Pauses
from pqrun.job.policy import BackoffPolicy, IdlePollPolicy, LoopErrorPolicy
from pqrun.job.serving import Serving
from pqrun.job.state import Status
from pqrun.job.storable import one_line
from pqrun.run import events as told
from pqrun.run.attempt import Surroundings
from pqrun.run.blockage import LoopWatch
from pqrun.run.events import Events
from pqrun.run.execute import Executor
from pqrun.run.fetch import Fetcher
from pqrun.run.groups import GroupName
from pqrun.run.handler import Handler
from pqrun.run.hints import Hints
from pqrun.run.keep import Keeper
from pqrun.run.lowlevel import CLEANUP, cleanup_handler
from pqrun.run.maintain import Pruner, Reaper, UnservedReport
from pqrun.run.newer import NewerJobs
from pqrun.run.observe import Observer, slow_limit
from pqrun.run.progress import Reporter, Sweeper
from pqrun.run.renew import Renewer
from pqrun.run.schedule import Scheduler
from pqrun.run.settle import Settler
from pqrun.run.shapes import ShapeNote
from pqrun.run.stacks import Stacks
from pqrun.run.statistics import StatisticsWriter, Tally
from pqrun.run.vitals import Vitals, WorkerState
from pqrun.store import PgJobStore
from pqrun.store.keeping import KeptRegistry
from pqrun.store.source import DirectDsn
from pqrun.store.work import WorkStore

__all__ = ["Crew", "leave_seconds"]

_LOGGER = logging.getLogger("pqrun")

LEAVE_SECONDS = 2.0
"""Kept back from the shutdown's time for leaving the registry and closing connections; a quarter of it, where it is short."""


def leave_seconds(shutdown_timeout: float) -> float:
    """Return how much of the shutdown's time is kept back: half for the registry, a quarter each for links and the store."""
    return min(LEAVE_SECONDS, shutdown_timeout / 4)


class Crew:
    """Built for one run, started once, stopped once."""

    def __init__(
        self,
        store: PgJobStore,
        *,
        handlers: Mapping[str, Handler],
        serving: Serving,
        on_wanted: Callable[[str], None],
        worker_id: str,
        state: object,
        settings: WorkerSettings,
        backoff: BackoffPolicy,
        idle_policy: IdlePollPolicy,
        policy: LoopErrorPolicy,
        retention: timedelta | None,
        is_ack_sync: bool,
        direct: DirectDsn | None,
        events: Events,
        schedules: Sequence[ScheduleDefinition] | None = (),  # None: this worker leaves schedules alone
        app: str | None = None,
        statistics: timedelta | None = None,  # how long they are kept; None: nothing is counted
    ) -> None:
        self._worker_id = worker_id
        self._serving = serving
        self._settings = settings
        self._events = events
        self._work = work = WorkStore(store, worker_id=worker_id, is_awaited=self._is_awaited)
        handlers = {**handlers, CLEANUP: cleanup_handler(work.prune, retention)}
        self._job_types = tuple(name for name in handlers if name != CLEANUP)
        self._statistics = self._build_statistics(statistics, policy)
        tally = None if self._statistics is None else self._statistics.tally
        self._settler = Settler(
            work, events=events, policy=policy, on_due=self._on_due, on_done=None if tally is None else tally.done
        )
        reporter = Reporter(work, events=events, policy=policy)
        around = Surroundings(store, worker_id, state, work, backoff, NewerJobs(events), reporter)
        self._executor = self._build_executor(handlers, around, is_ack_sync, tally)
        self._fetcher = self._build_fetcher(idle_policy, policy)
        self._renewer = Renewer(work, self._executor, events=events, policy=policy)
        sweeper = Sweeper(work, events=events, policy=policy)
        self._services = [self._settler.service, self._renewer.service, reporter.service, sweeper.service]
        self._reaper = self._build_reaper(handlers, backoff, policy) if settings.enable_reaper else None
        if self._reaper is not None:
            self._services.append(self._reaper.service)
        report = UnservedReport(work, sweep_seconds=settings.reap_interval_seconds, events=events, policy=policy)
        self._report = report.service
        self._shapes = ShapeNote(work, list(handlers.values()), events=events, policy=policy).service
        self._leaves_schedules = schedules is None
        self._declared = tuple(definition.name for definition in schedules or ())
        self._scheduler = Scheduler(
            work, definitions=schedules or (), app=app, job_types=list(handlers), events=events, policy=policy
        )
        age_seconds = None if retention is None else retention.total_seconds()
        self._services.append(Pruner(work, age_seconds=age_seconds, events=events, policy=policy).service)
        self._is_stopping = False
        self._registered = asyncio.Event()
        self._unsubscribe: Callable[[], None] = lambda: None  # until there is a subscription
        self._keeper = self._build_keeper(store, direct, policy, on_wanted)

    def _build_statistics(self, keep: timedelta | None, policy: LoopErrorPolicy) -> StatisticsWriter | None:
        if keep is None:
            return None
        return StatisticsWriter(self._work, keep_seconds=keep.total_seconds(), events=self._events, policy=policy)

    def _build_executor(
        self, handlers: Mapping[str, Handler], around: Surroundings, is_ack_sync: bool, tally: Tally | None
    ) -> Executor:
        return Executor(
            handlers=handlers,
            around=around,
            serving=self._serving,
            grace_seconds=self._settings.shutdown_grace_seconds,
            events=self._events,
            deliver=self._settler.submit,
            deliver_and_wait=self._settler.submit_and_wait if is_ack_sync else None,
            on_room=self._on_room,
            is_backlogged=lambda: self._settler.is_full,
            on_start=None if tally is None else tally.started,
            on_done=None if tally is None else tally.done,
        )

    def _build_fetcher(self, idle_policy: IdlePollPolicy, policy: LoopErrorPolicy) -> Fetcher:
        return Fetcher(
            self._work,
            self._executor,
            unwritten=self._settler.unwritten,
            serving=self._serving,
            idle_policy=idle_policy,
            events=self._events,
            policy=policy,
        )

    def _build_reaper(self, handlers: Mapping[str, Handler], backoff: BackoffPolicy, policy: LoopErrorPolicy) -> Reaper:
        return Reaper(
            self._work,
            sweep_seconds=self._settings.reap_interval_seconds,
            stale_seconds=self._settings.stale_timeout_seconds,
            backoff=backoff,
            backoff_of=lambda name: handlers[name].backoff if name in handlers else None,
            rules_of=lambda name: handlers[name].rules if name in handlers else None,
            events=self._events,
            policy=policy,
        )

    def _build_keeper(
        self, store: PgJobStore, direct: DirectDsn | None, policy: LoopErrorPolicy, on_wanted: Callable[[str], None]
    ) -> Keeper:
        opener = store.open_direct("keeper", direct)
        if opener is None:
            _LOGGER.warning(
                "worker %s has only a pool, so it beats on its own event loop: a handler that blocks the loop for long may lose "
                "its job to another worker; direct_dsn= cures that",
                one_line(self._worker_id),
            )
        settings = self._settings
        return Keeper(
            lambda: KeptRegistry(
                opener or store.open_pooled(),
                store.statements,
                job_types=[*self._job_types, CLEANUP],
                schedules=self._declared,
                version=installed_version(),
                on_pooled=self._say_pooled,
                is_direct=direct is not None,
            ),
            worker_id=self._worker_id,
            serving=self._serving,
            in_thread=opener is not None,
            observer=Observer(slow_limit(settings.stale_timeout_seconds)) if settings.enable_reaper else None,
            events=self._events,
            policy=policy,
            on_registered=self._on_registered,
            on_connected=self._fetcher.on_reconnect,
            on_message=self._build_hints(),
            on_dead=self._on_dead,
            on_gone=self._fetcher.on_suspect,
            on_pauses=self._on_pauses,
            on_wanted=on_wanted,
            take_stacks=Stacks(self._executor.attempts).take,
            watch=LoopWatch(self._executor.in_hand, self._events),
        )

    def _build_hints(self) -> Hints:
        return Hints(
            on_ready=self._fetcher.on_ready,
            on_suspect=self._fetcher.on_suspect,
            on_due=self._fetcher.on_due_at,
            on_cancel=self._renewer.service.wake,
            on_left=self._on_dead,
            on_await=self._settler.await_ids,
            on_schedules=self._scheduler.service.wake,
            on_change=self._on_change,
        )

    def _say_pooled(self) -> None:
        _LOGGER.warning(
            "worker %s reaches its database through a pooler in transaction mode: it polls, as it cannot hear notifications, and its death "
            "would be noticed after %g s only; direct_dsn= (a DSN of PostgreSQL itself) gives it LISTEN and fast liveness",
            one_line(self._worker_id),
            slow_limit(self._settings.stale_timeout_seconds),
        )

    async def start(self) -> None:
        """Register, then fetch."""
        self._unsubscribe = self._events.subscribe(self._on_event, wants=_is_recovery)
        for service in self._services:
            service.start()
        self._keeper.start()
        await self._registered.wait()
        self._fetcher.service.start()
        self._shapes.start()
        if self._statistics is not None:
            self._statistics.start()
        self._report.start()  # now: before, this worker itself would not count as serving anything
        if not self._leaves_schedules:
            self._scheduler.service.start()  # the same: as declaring anything
        self._events.emit(told.WorkerStarted(self._worker_id, self._serving.concurrency, self._job_types))

    def vitals(self, state: WorkerState) -> Vitals:
        """Return what is in hand at this moment; for any thread."""
        return Vitals(
            state=state,
            slots=self._serving.concurrency,
            running=self._executor.running,
            held=self._executor.held,
            unwritten=self._settler.backlog,
        )

    async def hold_beats(self) -> int | None:
        """Give no sign of life until ``resume_beats``; return the row of the registry."""
        return await self._keeper.hold()

    def resume_beats(self) -> None:
        """Beat again."""
        self._keeper.resume()

    def serve(self, serving: Serving) -> None:
        """Serve other queues from now on, with other numbers, or claim nothing for now."""
        if self._is_stopping:
            return
        self._log_change(serving)
        self._serving = serving
        self._executor.serve(serving)
        self._fetcher.serve(serving)
        self._keeper.serve(serving)

    def _log_change(self, serving: Serving) -> None:
        worker = one_line(self._worker_id)
        if serving.fetching != self._serving.fetching:
            _LOGGER.info(
                "worker %s now claims %s", worker, "jobs again" if serving.fetching else "nothing, until resumed"
            )
            return
        queues = "all queues" if serving.queues is None else ", ".join(map(one_line, serving.queues))
        _LOGGER.info("worker %s now serves %s, %d jobs at once", worker, queues, serving.concurrency)

    def stop_soon(self) -> None:
        """Start nothing more, and say so in the registry; ``stop`` does the rest."""
        self._is_stopping = True
        self._keeper.serve(msgspec.structs.replace(self._serving, fetching=False))
        self._fetcher.service.stop_soon()
        self._executor.close()  # what the claim under way still brings goes back

    async def stop(self, hastened: Callable[[], Awaitable[None]]) -> None:
        """Stop in order, within ``shutdown_timeout``; ``hastened`` returns when the grace is to be cut short."""
        loop = asyncio.get_running_loop()
        seconds = self._settings.shutdown_timeout_seconds
        until = loop.time() + seconds
        leave = leave_seconds(seconds)

        def left(share: float = 1.0) -> float:
            """Return the seconds until so many times the time for leaving remain."""
            return max(until - loop.time() - share * leave, 0.0)

        self._tell("stop fetching")
        self.stop_soon()
        clean = await self._fetcher.service.stop(min(left(), 10.0))
        if self._executor.running:
            self._tell("wait")
            await _first(self._executor.wait_idle(min(self._settings.shutdown_grace_seconds, left())), hastened())
        if self._executor.running:
            self._tell("cancel")
            self._executor.stop_all()
            await self._executor.wait_idle(left(2.0))
        if self._executor.running:
            self._tell("give up")
        self._executor.give_up_all()
        self._tell("flush")
        clean = await self._settler.wait_flushed(left()) and clean
        if self._statistics is not None:
            await self._statistics.stop(left(0.5))
        services = (*self._services, self._report, self._shapes, self._scheduler.service)
        await asyncio.gather(*(service.stop(min(left(0.5), 5.0)) for service in services))
        clean = await self._keeper.stop(max(left(0.5), 0.25)) and clean
        await self._work.close(
            min(max(left(0.25) / 4, 0.05), 0.5)
        )  # each of four connections; a dead one says nothing for ever
        self._unsubscribe()
        self._events.emit(told.WorkerStopped(self._worker_id, clean))

    def _tell(self, step: told.StopStep) -> None:
        jobs = self._executor.running + self._settler.backlog
        self._events.emit(told.WorkerStopping(self._worker_id, step, jobs))

    def _on_registered(self, worker: int) -> None:
        self._work.register(worker)
        self._registered.set()

    def _on_change(self) -> None:
        self._keeper.look()

    def _on_pauses(self, pauses: Pauses) -> None:
        self._executor.pause(pauses)
        self._fetcher.on_pauses(pauses)

    def _on_dead(self) -> None:
        if self._reaper is not None:
            self._reaper.on_dead()

    def _on_event(self, event: told.Event) -> None:
        if isinstance(event, told.Recovered) and event.status == Status.READY:
            self._fetcher.on_suspect()  # behind a pooler this worker does not hear what it announces itself

    def _is_awaited(self, job_id: int) -> bool:
        return self._settler.is_awaited(job_id)

    def _on_due(self, seconds: float) -> None:
        self._fetcher.on_due(seconds)

    def _on_room(self, group: GroupName) -> None:
        self._fetcher.on_room(group)


def _is_recovery(kind: type[told.Event]) -> bool:
    return kind is told.Recovered


async def _first(one: Awaitable[object], other: Awaitable[object]) -> None:
    """Wait for whichever ends first, and cancel the rest."""
    tasks = [asyncio.ensure_future(one), asyncio.ensure_future(other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
