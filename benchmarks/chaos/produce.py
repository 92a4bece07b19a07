"""The producers of the load: ``python -m benchmarks.chaos.produce DSN FOLDER NAME SEED RATE``. SIGTERM stops them in order.

They defer one by one, many at once, in transactions that commit or roll back, with dedupe keys, for later; they cancel, and retry by hand.
"""

import asyncio
import itertools
import logging
import random
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

from benchmarks.chaos.child import end_with_parent
from benchmarks.chaos.load import BLAMELESS, Load, LoadTask
from benchmarks.chaos.log import (
    CancelAnswered,
    CancelAsked,
    Committed,
    Deferred,
    Deferring,
    Log,
    Met,
    RetryAnswered,
    RetryAsked,
    RolledBack,
)
from pqrun.cli.signals import heard
from pqrun.errors import JobBusy, RetryRefused, StoreError
from pqrun.handle import JobHandle
from pqrun.job.outcome import CancelOutcome
from pqrun.store.failure import translating

__all__: list[str] = []

PRODUCERS = 4

KEYS = 6
"""So few that a key is often taken."""

BACKLOG = 400
"""Active jobs beyond which producers wait: a run must drain in bounded time."""

LOOK_SECONDS = 0.5
"""Between two looks at the backlog."""

RECENT = 30
"""Jobs that a producer may still cancel or retry."""

YOUNG = 4
"""The last of those, which may still wait or run when they are cancelled."""

WEIGHTS = {"quick": 8, "slow": 4, "plain": 2, "shaky": 3, "patient": 3, "overdue": 1, "complete": 4}

_LOGGER = logging.getLogger("benchmarks")


class Regret(Exception):
    """Rolls a transaction back."""


class Producer:
    """Does one thing after another. A job is cancelled and retried by the producer that deferred it, so those come in order."""

    def __init__(self, load: Load, log: Log, name: str, seed: str) -> None:
        self._load = load
        self._log = log
        self._name = name
        self._random = random.Random(seed)
        self._numbers = itertools.count(1)
        self._recent: list[JobHandle[None]] = []
        self._doings: dict[Callable[[], Awaitable[None]], int] = {
            self._defer: 40,
            self._defer_later: 8,
            self._defer_keyed: 15,
            self._defer_many: 3,
            self._defer_together: 12,
            self._cancel: 8,
            self._retry: 8,
        }

    async def act(self) -> None:
        """Do something; a database that is away is the ordinary case here, and whatever else goes wrong is noted."""
        (doing,) = self._random.choices(list(self._doings), list(self._doings.values()))
        try:
            await doing()
        except (StoreError, JobBusy) as error:
            _LOGGER.info("%s", error)
        except Exception as error:  # the checker tells of it
            _LOGGER.exception("unexpected")
            self._log.write(Met(f"{type(error).__name__}: {error}"))

    def _choose(self, batch: str | None = None, key: str | None = None) -> tuple[LoadTask, str]:
        (name,) = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        return self._announce(self._load.tasks["slow" if key else name], batch, key)

    def _announce(self, task: LoadTask, batch: str | None, key: str | None) -> tuple[LoadTask, str]:
        token = f"{self._name}-{next(self._numbers)}"
        attempts = self._random.randint(3, 8)
        self._log.write(Deferring(token, task.name, attempts, key, batch, task.name in BLAMELESS))
        priority = self._random.choice((-1, 0, 0, 0, 5))
        return task.options(dedupe_key=key, max_attempts=attempts, priority=priority), token

    def _acknowledge(self, token: str, handle: JobHandle[None]) -> None:
        self._log.write(Deferred(token, handle.id, handle.created))

    def _remember(self, handle: JobHandle[None]) -> None:
        if handle.created:
            self._recent = [*self._recent[1 - RECENT :], handle]

    async def _defer(self) -> None:
        task, token = self._choose()
        handle = await task.defer(token=token)
        self._acknowledge(token, handle)
        self._remember(handle)

    async def _defer_later(self) -> None:
        task, token = self._choose()
        handle = await task.options(run_after=timedelta(seconds=self._random.uniform(0.1, 4))).defer(token=token)
        self._acknowledge(token, handle)
        self._remember(handle)

    async def _defer_keyed(self) -> None:
        task, token = self._choose(key=f"key {self._random.randrange(KEYS)}")
        handle = await task.defer(token=token)
        self._acknowledge(token, handle)
        self._remember(handle)

    async def _defer_many(self) -> None:
        chosen = [self._choose() for _ in range(self._random.randint(2, 30))]
        handles = await self._load.app.defer_many([task.call(token=token) for task, token in chosen])
        for (_, token), handle in zip(chosen, handles, strict=True):
            self._acknowledge(token, handle)

    async def _defer_together(self) -> None:
        batch = f"{self._name}-batch-{next(self._numbers)}"
        handles = []
        try:
            async with self._load.app.store.transaction() as connection:
                for _ in range(self._random.randint(1, 4)):
                    task, token = self._choose(batch)
                    handle = await task.options(connection=connection).defer(token=token)
                    self._acknowledge(token, handle)
                    handles.append(handle)
                if self._random.random() < 0.4:
                    raise Regret
        except Regret:
            self._log.write(RolledBack(batch))
            return
        self._log.write(Committed(batch))
        for handle in handles:
            self._remember(handle)

    async def _cancel(self) -> None:
        if self._recent:
            handle = self._random.choice(self._recent[-YOUNG:])
            self._log.write(CancelAsked(handle.id))
            outcome = await handle.cancel()
            self._log.write(CancelAnswered(handle.id, outcome))
            if outcome is CancelOutcome.CANCELLED and self._random.random() < 0.5:
                await self._retry_one(handle)

    async def _retry(self) -> None:
        if self._recent:
            await self._retry_one(self._random.choice(self._recent))

    async def _retry_one(self, handle: JobHandle[None]) -> None:
        self._log.write(RetryAsked(handle.id))
        try:
            await handle.retry()
        except RetryRefused:
            self._log.write(RetryAnswered(handle.id, accepted=False))
        else:
            self._log.write(RetryAnswered(handle.id, accepted=True))


class Backlog:
    """Whether there is too much to do already; while the database is away, as it was."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.is_full = False

    async def look(self) -> None:
        """Look again and again."""
        while True:
            try:
                async with self._load.app.store.transaction() as connection:
                    with translating():
                        rows = await connection.fetch(f"SELECT FROM pqrun.jobs_active LIMIT {BACKLOG}", timeout=5)
                self.is_full = len(rows) >= BACKLOG
            except StoreError as error:
                _LOGGER.info("%s", error)
            await asyncio.sleep(LOOK_SECONDS)


async def _produce(load: Load, log: Log, name: str, seed: str, rate: float) -> None:
    stopped = asyncio.Event()
    backlog = Backlog(load)

    async def go_on(number: int) -> None:
        producer = Producer(load, log, f"{name}{number}", f"{seed} {number}")
        pauses = random.Random(f"pauses {seed} {number}")
        while not stopped.is_set():
            if not backlog.is_full:
                await producer.act()
            await asyncio.sleep(pauses.expovariate(rate / PRODUCERS))

    with heard(asyncio.get_running_loop(), lambda _number: stopped.set()):
        async with load.app:
            looking = asyncio.create_task(backlog.look())
            await asyncio.gather(*(go_on(number) for number in range(PRODUCERS)))
            looking.cancel()


def _main(dsn: str, folder: str, name: str, seed: str, rate: str) -> None:
    end_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with Log(Path(folder), name) as log:
        asyncio.run(_produce(Load(dsn, log), log, name, seed, float(rate)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
