"""The reaper and the pruner: what they ask, when they look again, and what they tell."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from pqrun.errors import HandlerTimeout
from pqrun.job.outcome import Counts, Failed, Recovered, Retrying
from pqrun.job.policy import BackoffPolicy, LoopErrorPolicy
from pqrun.job.record import Claim
from pqrun.job.rules import RetryRules
from pqrun.job.state import Status
from pqrun.run import events
from pqrun.run.events import Events
from pqrun.run.maintain import (
    AUDIT_SECONDS,
    ORPHAN_MARGIN_SECONDS,
    OVERDUE_MARGIN_SECONDS,
    PIECE_ROWS,
    Pruner,
    Reaper,
    UnservedReport,
)
from pqrun.store.attempts import PrunedAttempts
from pqrun.store.maintaining import Overdue, Pruned, Reaped
from pqrun.store.settling import Settled
from tests.support.waiting import Recorder, wait_until

HOUR = 3_600.0


class Seconds(BackoffPolicy):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def retry_delay(self, attempts: int) -> timedelta:
        return timedelta(seconds=self.seconds * attempts)


class Broken(BackoffPolicy):
    def retry_delay(self, attempts: int) -> timedelta:
        raise OverflowError


class Yard:
    """Stands for the store: pieces that wait to be taken back, and a note of each question."""

    def __init__(self) -> None:
        self.lost: list[list[Reaped]] = []
        self.orphans: list[list[Reaped]] = []
        self.overdue: list[Overdue] = []
        self.decided: list[Retrying | Failed] = []
        self.unserved: list[tuple[str, str]] = []
        self.pieces: list[Pruned] = []
        self.asked: list[str] = []
        self.sweeps = 0
        self.looks = 0
        self.ages: list[float] = []
        self.audits = 0
        self.audit_pieces: list[Pruned] = []
        self.left_behind: list[PrunedAttempts] = []
        self.after: list[int] = []

    async def reap_lost(self) -> list[Reaped]:
        self.asked.append("lost")
        return self.lost.pop(0) if self.lost else []

    async def reap_orphans(self, *, stale_seconds: float, margin_seconds: float) -> list[Reaped]:
        self.asked.append("orphans")
        assert (stale_seconds, margin_seconds) == (1200.0, ORPHAN_MARGIN_SECONDS)
        return self.orphans.pop(0) if self.orphans else []

    async def reap_overdue(
        self, *, margin_seconds: float, decide: Callable[[Overdue], Retrying | Failed]
    ) -> list[Reaped]:
        assert margin_seconds == OVERDUE_MARGIN_SECONDS
        found, self.overdue = self.overdue, []
        self.decided += map(decide, found)
        return [
            Reaped(o.job_type, "w", d, Settled(o.claim, Status.SCHEDULED, 1.0), "default")
            for o, d in zip(found, self.decided, strict=False)
        ]

    async def forget_workers(self) -> list[int]:
        self.sweeps += 1
        return []

    async def find_unserved(self) -> list[tuple[str, str]]:
        self.looks += 1
        return self.unserved

    async def prune(self, *, age_seconds: float) -> Pruned:
        self.ages.append(age_seconds)
        return self.pieces.pop(0) if self.pieces else Pruned(True, 0)

    async def prune_audit(self, *, age_seconds: float) -> Pruned:
        assert age_seconds == AUDIT_SECONDS
        self.audits += 1
        return self.audit_pieces.pop(0) if self.audit_pieces else Pruned(True, 0)

    async def prune_attempts(self, *, after_job_id: int) -> PrunedAttempts:
        self.after.append(after_job_id)
        return self.left_behind.pop(0) if self.left_behind else PrunedAttempts(True, 0, None)


def reaped(job_id: int, *, worker_id: str = "dead") -> Reaped:
    claim = Claim(job_id, job_id + 1000)
    return Reaped(
        "t", worker_id, Recovered(claim, "lost its worker once"), Settled(claim, Status.READY, None), "default"
    )


def make_reaper(
    yard: Yard, told: Events, *, sweep_seconds: float = HOUR, backoff: BackoffPolicy | None = None
) -> Reaper:
    own = {"own": Seconds(7)}
    rules = {"once": RetryRules(no_retry_on=(HandlerTimeout,)), "named": RetryRules(retry_on=(TimeoutError,))}
    return Reaper(
        yard,
        sweep_seconds=sweep_seconds,
        stale_seconds=1200.0,
        backoff=backoff or Seconds(100),
        backoff_of=own.get,
        rules_of=rules.get,
        events=told,
        policy=LoopErrorPolicy(),
    )


def overdue(attempts: int, *, job_type: str = "t", delays: tuple[float, ...] | None = None) -> Overdue:
    return Overdue(Claim(5, 1005), Counts(attempts, 3), 2.5, delays, job_type)


async def test_at_its_start_it_sweeps_and_then_only_when_it_is_time() -> None:
    yard = Yard()
    reaper = make_reaper(yard, Events())
    reaper.service.start()
    await wait_until(lambda: yard.sweeps == 1)
    yard.asked.clear()
    reaper.service.wake()
    await wait_until(lambda: yard.asked)
    assert (yard.asked, yard.sweeps) == (["lost"], 1)
    assert await reaper.service.stop(30)


async def test_sweeps_come_back_after_their_time() -> None:
    yard = Yard()
    reaper = make_reaper(yard, Events(), sweep_seconds=0.005)
    reaper.service.start()
    await wait_until(lambda: yard.sweeps >= 3)
    assert await reaper.service.stop(30)


async def test_after_a_death_it_looks_again_for_rows_that_were_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pqrun.run.maintain.DEAD_LOOK_SECONDS", 0.0)
    yard, told = Yard(), Events()
    heard = Recorder(told)
    reaper = make_reaper(yard, told)
    reaper.service.start()
    await wait_until(lambda: yard.sweeps == 1)
    monkeypatch.setattr("pqrun.run.maintain.DEAD_LOOK_SECONDS", HOUR)
    yard.lost = [[], [reaped(1)]]
    reaper.on_dead()
    await heard.wait_for(events.Recovered, seconds=10)
    assert yard.sweeps == 1
    assert await reaper.service.stop(30)


async def test_jobs_of_dead_workers_are_taken_back_piece_by_piece_and_told() -> None:
    yard, told = Yard(), Events()
    heard = Recorder(told)
    yard.lost = [[reaped(number) for number in range(PIECE_ROWS)], [reaped(PIECE_ROWS, worker_id="a\nb")]]
    reaper = make_reaper(yard, told)
    reaper.service.start()
    last = await heard.wait_for(events.Recovered, count=PIECE_ROWS + 1)
    assert last == events.Recovered(PIECE_ROWS, "t", "a\nb", "READY", "lost its worker once", "default", True)
    assert await reaper.service.stop(30)


async def test_rows_of_nobody_are_taken_back_until_none_is_left() -> None:
    yard, told = Yard(), Events()
    heard = Recorder(told)
    yard.orphans = [[reaped(1)], [reaped(2)]]
    reaper = make_reaper(yard, told)
    reaper.service.start()
    await wait_until(lambda: yard.sweeps)
    assert [event.job_id for event in heard.of(events.Recovered)] == [1, 2]
    assert await reaper.service.stop(30)


async def test_an_overdue_job_is_decided_as_its_worker_would_have() -> None:
    yard = Yard()
    yard.overdue = [
        overdue(1),
        overdue(2, job_type="own"),
        overdue(2, delays=(1.0, 2.0)),
        overdue(3, delays=(1.0, 2.0)),
    ]
    reaper = make_reaper(yard, Events())
    reaper.service.start()
    await wait_until(lambda: yard.sweeps)
    assert await reaper.service.stop(30)
    assert [d.delay_seconds if isinstance(d, Retrying) else None for d in yard.decided] == [100.0, 14.0, 2.0, None]
    for decided in yard.decided:
        assert decided.error.startswith("pqrun.errors.HandlerTimeout: ")
        assert "ran longer than its timeout of 2.5 s" in decided.error


async def test_an_overdue_job_is_judged_by_the_rules_of_its_task() -> None:
    yard = Yard()
    yard.overdue = [overdue(1, job_type="once"), overdue(1, job_type="named"), overdue(1)]
    reaper = make_reaper(yard, Events())
    reaper.service.start()
    await wait_until(lambda: yard.sweeps)
    assert await reaper.service.stop(30)
    assert [type(decided) for decided in yard.decided] == [Failed, Retrying, Retrying]
    assert "HandlerTimeout" in yard.decided[0].error


async def test_a_policy_that_fails_does_not_end_the_sweep(caplog: pytest.LogCaptureFixture) -> None:
    yard = Yard()
    yard.overdue = [overdue(1)]
    reaper = make_reaper(yard, Events(), backoff=Broken())
    reaper.service.start()
    await wait_until(lambda: yard.sweeps)
    assert await reaper.service.stop(30)
    (decided,) = yard.decided
    assert isinstance(decided, Retrying)
    assert decided.delay_seconds == 60.0
    assert "Broken.retry_delay raised OverflowError" in caplog.text


async def test_what_nobody_serves_is_told_once() -> None:
    yard, told = Yard(), Events()
    heard = Recorder(told)
    yard.unserved = [("default", "gone")]
    report = UnservedReport(yard, sweep_seconds=0.005, events=told, policy=LoopErrorPolicy())
    report.service.start()
    await wait_until(lambda: yard.looks >= 3)
    yard.unserved = [("default", "gone"), ("other", "gone")]
    await heard.wait_for(events.Unserved, count=2)
    assert await report.service.stop(30)
    assert heard.of(events.Unserved) == [events.Unserved("default", "gone"), events.Unserved("other", "gone")]


async def test_retention_goes_piece_by_piece_and_tells_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pqrun.run.maintain.PRUNE_PIECE_SECONDS", 0.0)
    yard, told = Yard(), Events()
    heard = Recorder(told)
    yard.pieces = [Pruned(True, 1000), Pruned(True, 1000), Pruned(True, 7)]
    pruner = Pruner(yard, age_seconds=60.0, events=told, policy=LoopErrorPolicy())
    pruner.service.start()
    assert (await heard.wait_for(events.Pruned)).deleted == 2007
    for _ in range(20):
        await asyncio.sleep(0)
    assert yard.ages == [60.0] * 4
    pruner.service.wake()
    await wait_until(lambda: len(yard.ages) == 5)
    assert await pruner.service.stop(30)
    assert len(heard.of(events.Pruned)) == 1


async def test_the_audit_log_goes_piece_by_piece_with_the_jobs_and_stays_where_they_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pqrun.run.maintain.PRUNE_PIECE_SECONDS", 0.0)
    yard, told = Yard(), Events()
    yard.audit_pieces = [Pruned(True, 1000), Pruned(True, 3)]
    pruner = Pruner(yard, age_seconds=60.0, events=told, policy=LoopErrorPolicy())
    pruner.service.start()
    await wait_until(lambda: len(yard.after) == 1)  # the end of the round
    assert await pruner.service.stop(30)
    assert yard.audits == 3
    keeper = Yard()
    pruner = Pruner(keeper, age_seconds=None, events=told, policy=LoopErrorPolicy())
    pruner.service.start()
    await wait_until(lambda: len(keeper.after) == 1)
    assert await pruner.service.stop(30)
    assert keeper.audits == 0


async def test_attempts_of_jobs_that_are_gone_are_removed_piece_by_piece_though_nothing_is_pruned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pqrun.run.maintain.PRUNE_PIECE_SECONDS", 0.0)
    yard, told = Yard(), Events()
    yard.left_behind = [
        PrunedAttempts(True, 3, 70),
        PrunedAttempts(False, 0, None),  # another worker's turn: the place is kept
        PrunedAttempts(True, 0, 90),
        PrunedAttempts(True, 1, None),
    ]
    pruner = Pruner(yard, age_seconds=None, events=told, policy=LoopErrorPolicy())
    pruner.service.start()
    for looks in (2, 3, 5):  # with nothing found it waits for the next round
        await wait_until(lambda looks=looks: len(yard.after) == looks)  # type: ignore[misc]  # a lambda with a default
        pruner.service.wake()
    await wait_until(lambda: len(yard.after) == 6)
    assert await pruner.service.stop(30)
    assert (yard.after, yard.ages) == ([0, 70, 70, 90, 0, 0], [])
