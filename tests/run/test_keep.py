"""The keeper: registered, heard, and observing, in a thread of its own or on the worker's loop."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from pqrun.errors import DatabaseUnavailableError
from pqrun.job.pause import NO_PAUSES, Pauses
from pqrun.job.policy import LoopErrorPolicy
from pqrun.job.serving import Serving
from pqrun.run.events import Events, LoopFailed, LoopResumed, WorkerDied
from pqrun.run.keep import Keeper
from pqrun.run.observe import Observer
from pqrun.store.registry import Beat, Beats
from tests.support.jobs import NOW
from tests.support.waiting import Recorder, wait_until


@pytest.fixture(autouse=True)
def _quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pqrun.run.keep.BEAT_SECONDS", 0.005)


class Registry:
    """Stands for the kept connection; what it is asked is noted, and may fail once."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.failures: dict[str, list[Exception]] = {}
        self.is_connected = False
        self.is_registered = True
        self.is_pooled = False
        self.pauses = NO_PAUSES
        self.wanted: str | None = None
        self.locks_refused = 0
        self.others: list[Beat] = []
        self.free: frozenset[int] = frozenset()
        self.next_id = 1
        self.on_message: Callable[[str], None] | None = None
        self.threads: set[str] = set()
        self.beats = 0
        self.three_beats = threading.Event()
        self.hang: asyncio.Event | None = None
        self.is_hanging = False

    def note(self, *call: str) -> None:
        self.threads.add(threading.current_thread().name)
        self.calls.append(call)
        if waiting := self.failures.get(call[0]):
            raise waiting.pop(0)

    async def serve(self, worker: int, serving: Serving) -> None:
        self.note("serve", str(worker), str(serving.concurrency))

    async def tell_stacks(self, worker: int, text: str) -> None:
        self.note("tell_stacks", str(worker), text)

    async def register(self, worker_id: str, hostname: str, pid: int, serving: Serving) -> int:
        self.note("register", worker_id)
        self.next_id += 1
        self.is_registered = True
        return self.next_id - 1

    async def hold_lock(self, worker: int) -> bool:
        self.note("hold_lock", str(worker))
        self.locks_refused -= 1
        return not self.is_pooled and self.locks_refused < 0

    async def listen(self, on_message: Callable[[str], None]) -> None:
        self.note("listen")
        self.on_message = on_message

    async def beat(self, worker: int) -> Beats:
        if self.hang is not None:
            self.is_hanging = True
            await self.hang.wait()
        self.beats += 1
        if self.beats >= 3:
            self.three_beats.set()
        if waiting := self.failures.get("beat"):
            raise waiting.pop(0)
        return Beats(self.is_registered, self.others, self.pauses, self.wanted)

    async def probe_locks(self, workers: list[int]) -> frozenset[int]:
        self.note("probe_locks", *map(str, workers))
        return self.free

    async def bury(self, dead: list[Beat]) -> list[tuple[int, str]]:
        self.note("bury", *(str(beat.worker) for beat in dead))
        self.others = []
        return [(beat.worker, beat.worker_id) for beat in dead]

    async def deregister(self, worker: int) -> None:
        self.note("deregister", str(worker))

    async def connect(self) -> None:
        self.note("connect")
        self.is_connected = True

    async def close(self) -> None:
        self.is_connected = False
        self.note("close")

    def asked(self, what: str) -> int:
        return sum(call[0] == what for call in list(self.calls))


class Hasty(Observer):
    """Judges at the second look, whatever the clock says: the real judgement has tests of its own."""

    def __init__(self, *, probes: bool) -> None:
        super().__init__(30.0)
        self.probes = probes
        self.looks = 0
        self.resets = 0

    def reset(self) -> None:
        super().reset()
        self.resets = getattr(self, "resets", 0) + 1

    def observe(self, others: "list[Beat] | tuple[Beat, ...]", now: float) -> tuple[list[Beat], list[Beat]]:  # type: ignore[override]  # narrower
        self.looks += 1
        if self.looks < 2:
            return [], []
        return (list(others), []) if self.probes else ([], list(others))


@dataclass
class Told:
    """What the keeper told, and on which thread."""

    registered: list[int] = field(default_factory=list)
    connected: int = 0
    messages: list[str] = field(default_factory=list)
    dead: int = 0
    gone: int = 0
    pauses: list[Pauses] = field(default_factory=list)
    wanted: list[str] = field(default_factory=list)
    taken: int = 0
    threads: set[str] = field(default_factory=set)

    def on_registered(self, worker: int) -> None:
        self.threads.add(threading.current_thread().name)
        self.registered.append(worker)

    def on_connected(self) -> None:
        self.connected += 1

    def on_message(self, message: str) -> None:
        self.threads.add(threading.current_thread().name)
        self.messages.append(message)

    def on_dead(self) -> None:
        self.dead += 1

    async def take_stacks(self) -> str:
        self.taken += 1
        return f"stacks {self.taken}"

    def on_gone(self) -> None:
        self.gone += 1

    def on_pauses(self, pauses: Pauses) -> None:
        self.pauses.append(pauses)


def make_keeper(
    registry: Registry, told: Told, *, in_thread: bool, observer: Observer | None, events: Events
) -> Keeper:
    return Keeper(
        lambda: registry,
        worker_id="w",
        serving=Serving(None, 1, shared=1),
        in_thread=in_thread,
        observer=observer,
        events=events,
        policy=LoopErrorPolicy(),
        on_registered=told.on_registered,
        on_connected=told.on_connected,
        on_message=told.on_message,
        on_dead=told.on_dead,
        on_gone=told.on_gone,
        on_pauses=told.on_pauses,
        on_wanted=told.wanted.append,
        take_stacks=told.take_stacks,
    )


@asynccontextmanager
async def keeping(
    registry: Registry, *, in_thread: bool = True, observer: Observer | None = None, events: Events | None = None
) -> AsyncIterator[Told]:
    told = Told()
    keeper = make_keeper(registry, told, in_thread=in_thread, observer=observer, events=events or Events())
    keeper.start()
    try:
        yield told
    finally:
        assert await keeper.stop(30)


@pytest.mark.parametrize("in_thread", [True, False])
async def test_it_registers_takes_its_lock_listens_beats_and_leaves(in_thread: bool) -> None:
    registry = Registry()
    async with keeping(registry, in_thread=in_thread) as told:
        await wait_until(lambda: registry.beats >= 3)
    calls = [call[0] for call in registry.calls]
    assert calls == ["connect", "listen", "register", "hold_lock", "deregister", "close"]
    assert (told.registered, told.connected) == ([1], 1)
    assert registry.threads == {"pqrun keeper" if in_thread else threading.current_thread().name}


async def test_its_news_come_on_the_loop_of_the_worker() -> None:
    registry = Registry()
    async with keeping(registry) as told:
        await wait_until(lambda: told.registered)
        assert registry.on_message is not None
        registry.on_message("ready:0:default")
        await wait_until(lambda: told.messages == ["ready:0:default"])
    assert told.threads == {threading.current_thread().name}


async def test_it_beats_while_a_handler_blocks_the_loop_of_the_worker() -> None:
    registry = Registry()
    async with keeping(registry):
        assert registry.three_beats.wait(30)  # blocks this very loop


async def test_a_worker_that_was_taken_for_dead_registers_anew() -> None:
    registry = Registry()
    async with keeping(registry) as told:
        await wait_until(lambda: told.registered == [1])
        registry.is_registered = False
        await wait_until(lambda: told.registered == [1, 2])
    assert ("hold_lock", "2") in registry.calls
    assert registry.calls[-2] == ("deregister", "2")


@pytest.mark.parametrize("in_thread", [True, False])
async def test_held_it_does_not_beat_and_resumed_it_registers_anew_if_it_was_taken_for_dead(in_thread: bool) -> None:
    registry, told = Registry(), Told()
    keeper = make_keeper(registry, told, in_thread=in_thread, observer=None, events=Events())
    keeper.start()
    await wait_until(lambda: registry.beats >= 3)
    for number in (1, 2):  # more than once
        assert await keeper.hold() == number
        beats = registry.beats
        registry.is_registered = False
        assert await keeper.hold() == number  # its loop has come round again
        assert (registry.beats, told.registered[-1]) == (beats, number)
        keeper.resume()
        await wait_until(lambda: registry.is_registered and told.registered[-1] == registry.next_id - 1)
    assert await keeper.stop(30)
    assert await keeper.hold() is None  # it has ended: there is nothing to wait for


async def test_after_a_lost_connection_it_listens_and_locks_again_under_its_old_number() -> None:
    registry, events = Registry(), Events()
    heard = Recorder(events)
    async with keeping(registry, events=events) as told:
        await wait_until(lambda: registry.beats)
        registry.calls.clear()
        registry.is_connected = False
        await wait_until(lambda: registry.asked("hold_lock"))
        assert [call[0] for call in registry.calls] == ["connect", "listen", "hold_lock"]
        await wait_until(lambda: told.connected == 2)
        await heard.wait_for(LoopResumed)
    assert told.registered == [1]
    (lost,) = heard.of(LoopFailed)
    assert (lost.error, lost.consecutive, lost.sleep_seconds) == ("the connection that beats and listens is gone", 1, 0)
    (resumed,) = heard.of(LoopResumed)
    assert (resumed.duty, resumed.errors) == ("keep", 1)


@pytest.mark.parametrize("step", ["listen", "hold_lock"])
async def test_a_connection_that_was_set_up_by_half_is_set_up_again(step: str) -> None:
    registry, events = Registry(), Events()
    heard = Recorder(events)
    async with keeping(registry, events=events) as told:
        await wait_until(lambda: registry.beats)
        registry.failures[step] = [DatabaseUnavailableError("timeout")]
        registry.calls.clear()
        registry.is_connected = False
        failed = await heard.wait_for(LoopFailed, count=2)  # the first tells the loss itself
        beats = registry.beats
        await wait_until(lambda: registry.beats > beats + 2)
        calls = [call[0] for call in registry.calls]
        assert calls[-3:] == ["connect", "listen", "hold_lock"]
        await wait_until(lambda: told.connected >= 2)
    assert (failed.duty, failed.error) == ("keep", "timeout")


async def test_while_the_database_is_away_it_tries_again_and_tells_it_and_resets_its_observations() -> None:
    registry, events, observer = Registry(), Events(), Hasty(probes=False)
    heard = Recorder(events)
    registry.failures["connect"] = [DatabaseUnavailableError("nobody\nanswers") for _ in range(3)]
    async with keeping(registry, events=events, observer=observer) as told:
        await wait_until(lambda: told.registered)
    failures = heard.of(LoopFailed)
    assert [(e.error, e.consecutive) for e in failures] == [("nobody\\nanswers", n) for n in (1, 2, 3)]
    assert observer.resets >= 3


async def test_a_first_registration_that_fails_is_tried_again() -> None:
    registry = Registry()
    registry.failures["register"] = [DatabaseUnavailableError("no")]
    async with keeping(registry) as told:
        await wait_until(lambda: told.registered)


async def test_an_error_of_a_beat_restarts_the_observations() -> None:
    registry, observer = Registry(), Hasty(probes=False)
    async with keeping(registry, observer=observer):
        await wait_until(lambda: registry.beats)
        resets = observer.resets
        registry.failures["beat"] = [DatabaseUnavailableError("slow")]
        await wait_until(lambda: observer.resets > resets)


async def test_a_worker_that_stands_still_is_buried_and_told() -> None:
    registry, events = Registry(), Events()
    heard = Recorder(events)
    registry.others = [Beat(7, 3, "gone", False)]
    async with keeping(registry, events=events, observer=Hasty(probes=False)) as told:
        assert await heard.wait_for(WorkerDied) == WorkerDied("gone")
        await wait_until(lambda: told.dead == 1)
    assert ("bury", "7") in registry.calls
    assert registry.asked("probe_locks") == 0


async def test_where_locks_decide_only_those_whose_lock_is_free_are_buried() -> None:
    registry, events = Registry(), Events()
    heard = Recorder(events)
    registry.others = [Beat(7, 3, "gone", True), Beat(8, 3, "there", True)]
    registry.free = frozenset({7})
    async with keeping(registry, events=events, observer=Hasty(probes=True)):
        await heard.wait_for(WorkerDied)
    assert ("probe_locks", "7", "8") in registry.calls
    assert ("bury", "7") in registry.calls


async def test_without_an_observer_nobody_is_judged() -> None:
    registry = Registry()
    registry.others = [Beat(7, 3, "gone", False)]
    async with keeping(registry) as told:
        await wait_until(lambda: registry.beats >= 5)
    assert registry.asked("bury") == told.dead == 0


@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_database_that_hangs_does_not_hold_up_the_stop(in_thread: bool) -> None:
    registry, told = Registry(), Told()
    keeper = make_keeper(registry, told, in_thread=in_thread, observer=None, events=Events())
    keeper.start()
    await wait_until(lambda: registry.beats)
    own = keeper._own
    assert own is not None
    registry.hang = asyncio.Event()
    await wait_until(lambda: registry.is_hanging)
    assert not await keeper.stop(0.02)
    own.call_soon_threadsafe(registry.hang.set)
    await wait_until(lambda: registry.asked("close"))
    await asyncio.wait_for(keeper._ended.wait(), 30)


async def test_a_leave_that_fails_still_ends() -> None:
    registry = Registry()
    registry.failures["deregister"] = [DatabaseUnavailableError("gone")]
    async with keeping(registry):
        await wait_until(lambda: registry.beats)
    assert registry.asked("close") == 1


async def test_a_stop_right_after_the_start_ends_it() -> None:
    async with keeping(Registry()):
        pass


async def test_a_stop_without_a_start_is_over_at_once() -> None:
    keeper = make_keeper(Registry(), Told(), in_thread=True, observer=None, events=Events())
    assert await keeper.stop(0)


@pytest.mark.parametrize("is_pooled", [True, False])
async def test_where_it_hears_nothing_it_tells_that_a_worker_is_gone_and_once_more(is_pooled: bool) -> None:
    registry = Registry()
    registry.is_pooled = is_pooled
    registry.others = [Beat(7, 1, "other", has_lock=False), Beat(8, 1, "stays", has_lock=False)]
    async with keeping(registry) as told:
        await wait_until(lambda: registry.beats >= 2)
        assert told.gone == 0
        registry.others = registry.others[1:]
        beats = registry.beats
        await wait_until(lambda: registry.beats >= beats + 4)
    assert told.gone == (2 if is_pooled else 0)


async def test_a_lock_that_an_earlier_session_still_holds_is_tried_for_until_it_is_had() -> None:
    registry = Registry()
    registry.locks_refused = 3
    async with keeping(registry):
        await wait_until(lambda: registry.asked("hold_lock") >= 4)
        beats = registry.beats
        await wait_until(lambda: registry.beats >= beats + 2)
    assert registry.asked("hold_lock") == 4


async def test_pauses_are_told_when_they_change_and_a_look_asks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pqrun.run.keep.BEAT_SECONDS", 3_600.0)
    registry, told = Registry(), Told()
    keeper = make_keeper(registry, told, in_thread=True, observer=None, events=Events())
    keeper.start()
    await wait_until(lambda: registry.beats == 1)
    assert told.pauses == []
    registry.pauses = Pauses({"mail": NOW}, {})
    keeper.look()
    await wait_until(lambda: told.pauses == [registry.pauses])
    keeper.look()
    await wait_until(lambda: registry.beats == 3)
    registry.pauses = NO_PAUSES
    keeper.look()
    await wait_until(lambda: len(told.pauses) == 2)
    assert told.pauses[1] == NO_PAUSES
    assert await keeper.stop(30)


async def test_each_request_for_stacks_is_answered_once_also_after_an_error() -> None:
    registry = Registry()
    registry.failures["tell_stacks"] = [DatabaseUnavailableError("away")]
    registry.wanted = '{"stacks": "a"}'
    async with keeping(registry) as told:
        await wait_until(lambda: registry.asked("tell_stacks") == 2)
        beats = registry.beats
        await wait_until(lambda: registry.beats > beats + 3)
        assert registry.asked("tell_stacks") == 2
        registry.wanted = '{"stacks": "b", "fetching": false}'
        await wait_until(lambda: ("tell_stacks", "1", "stacks 3") in list(registry.calls))
    assert told.wanted == ['{"stacks": "a"}', '{"stacks": "b", "fetching": false}']
