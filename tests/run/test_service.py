"""One loop: started and stopped in any order, never ended by an error, never spinning."""

import asyncio
import random

import pytest

from pqrun.errors import StoreError
from pqrun.job.policy import LoopErrorPolicy
from pqrun.run.events import Events, LoopFailed, LoopResumed
from pqrun.run.service import Service
from tests.support.waiting import Recorder, wait_until

LONG = 3_600.0


class Duty:
    """Counts its ticks; each says how long to rest, or raises."""

    def __init__(self, rest: float = LONG) -> None:
        self.ticks = 0
        self.rest = rest
        self.failures: list[Exception] = []
        self.gate: asyncio.Event | None = None

    async def __call__(self) -> float:
        self.ticks += 1
        if self.failures:
            raise self.failures.pop(0)
        if self.gate is not None:
            await self.gate.wait()
        return self.rest


class Sleepy(LoopErrorPolicy):
    def next_sleep(self, consecutive_errors: int) -> float:
        return LONG


class Broken(LoopErrorPolicy):
    def next_sleep(self, consecutive_errors: int) -> float:
        raise OverflowError("too much\nforged line")


def make_service(duty: Duty, events: Events | None = None, policy: LoopErrorPolicy | None = None) -> Service:
    return Service("fetch", duty, events=events or Events(), policy=policy or LoopErrorPolicy())


async def turn_the_loop() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_it_ticks_again_after_what_the_tick_said() -> None:
    duty = Duty(rest=0.001)
    service = make_service(duty)
    service.start()
    await wait_until(lambda: duty.ticks >= 5)
    assert await service.stop(5)
    ticks = duty.ticks
    await turn_the_loop()
    assert duty.ticks == ticks


async def test_a_second_start_makes_no_second_loop() -> None:
    duty = Duty()
    service = make_service(duty)
    service.start()
    service.start()
    await turn_the_loop()
    assert duty.ticks == 1
    assert await service.stop(5)


async def test_a_second_stop_is_harmless_also_at_the_same_time() -> None:
    service = make_service(Duty())
    service.start()
    assert all(await asyncio.gather(service.stop(5), service.stop(5)))
    assert await service.stop(5)


async def test_stop_before_start_means_that_it_never_ticks() -> None:
    duty = Duty()
    service = make_service(duty)
    assert await service.stop(5)
    service.start()
    await turn_the_loop()
    assert duty.ticks == 0
    assert await service.stop(5)


async def test_a_stop_right_after_the_start_lets_no_tick_begin() -> None:
    duty = Duty()
    service = make_service(duty)
    service.start()
    assert await service.stop(5)
    assert duty.ticks == 0


async def test_a_tick_under_way_is_finished() -> None:
    duty = Duty()
    duty.gate = asyncio.Event()
    service = make_service(duty)
    service.start()
    await wait_until(lambda: duty.ticks == 1)
    stopping = asyncio.create_task(service.stop(30))
    await turn_the_loop()
    assert service.is_stopping
    assert not stopping.done()
    duty.gate.set()
    assert await stopping
    assert duty.ticks == 1


async def test_a_tick_is_cut_off_only_when_the_time_is_over() -> None:
    duty = Duty()
    duty.gate = asyncio.Event()
    service = make_service(duty)
    service.start()
    await wait_until(lambda: duty.ticks == 1)
    assert not await service.stop(0.01)
    assert not duty.gate.is_set()


async def test_a_wake_up_ends_the_rest() -> None:
    duty = Duty()
    service = make_service(duty)
    service.start()
    await wait_until(lambda: duty.ticks == 1)
    await turn_the_loop()
    service.wake()
    await wait_until(lambda: duty.ticks == 2)
    assert await service.stop(5)


async def test_a_wake_up_during_a_tick_is_not_lost() -> None:
    duty = Duty()
    duty.gate = asyncio.Event()
    service = make_service(duty)
    service.start()
    await wait_until(lambda: duty.ticks == 1)
    service.wake()
    duty.gate.set()
    await wait_until(lambda: duty.ticks == 2)
    assert await service.stop(5)


async def test_errors_in_a_row_are_told_and_paced_and_then_forgotten() -> None:
    duty = Duty()
    duty.failures = [StoreError("no\nway"), ValueError("secret"), OSError("x")]
    events = Events()
    heard = Recorder(events)
    service = make_service(duty, events)
    service.start()
    await wait_until(lambda: duty.ticks == 4)
    first, second, third = heard.of(LoopFailed)
    assert [first.consecutive, second.consecutive, third.consecutive] == [1, 2, 3]
    assert first.sleep_seconds == 0.0
    assert 0.05 <= second.sleep_seconds < third.sleep_seconds
    # Only pqrun's own messages are known to hold no secrets; and a record is one line.
    assert [first.error, second.error, third.error] == ["no\\nway", "ValueError", "OSError"]
    resumed = await heard.wait_for(LoopResumed)
    assert (resumed.duty, resumed.errors) == ("fetch", 3)
    assert resumed.seconds >= second.sleep_seconds + third.sleep_seconds
    duty.failures = [StoreError("again")]
    service.wake()
    fourth = await heard.wait_for(LoopFailed, count=4)
    assert fourth.consecutive == 1
    assert (await heard.wait_for(LoopResumed, count=2)).errors == 1
    assert await service.stop(5)


async def test_a_wake_up_does_not_turn_the_back_off_into_a_hot_loop_but_a_stop_ends_it() -> None:
    duty = Duty()
    duty.failures = [StoreError("down")] * 100
    service = make_service(duty, policy=Sleepy())
    service.start()
    await wait_until(lambda: duty.ticks == 1)
    for _ in range(50):
        service.wake()
        await asyncio.sleep(0)
    assert duty.ticks == 1
    assert await service.stop(30)


async def test_a_policy_that_fails_is_replaced_and_told() -> None:
    duty = Duty()
    duty.failures = [StoreError("down")]
    events = Events()
    heard = Recorder(events)
    service = make_service(duty, events, Broken())
    service.start()
    told = await heard.wait_for(LoopFailed)
    assert "Broken.next_sleep raised OverflowError" in told.error
    assert "\n" not in told.error
    await wait_until(lambda: duty.ticks == 2)
    assert await service.stop(5)


async def test_a_cancelled_loop_ends() -> None:
    duty = Duty()
    service = make_service(duty)
    service.start()
    await wait_until(lambda: duty.ticks == 1)
    for task in asyncio.all_tasks():
        if task.get_name() == "pqrun fetch":
            task.cancel()
    assert await service.stop(30)


@pytest.mark.parametrize("seed", range(20))
async def test_no_order_of_start_wake_and_stop_leaves_a_loop_behind(seed: int) -> None:
    chance = random.Random(seed)
    duties = [Duty(rest=chance.choice([0.0, 0.0005, LONG])) for _ in range(20)]
    services = [make_service(duty) for duty in duties]

    async def hustle(service: Service, duty: Duty) -> None:
        for _ in range(30):
            act = chance.choice(["start", "start", "wake", "fail", "stop", "soon", "turn", "turn", "turn"])
            if act == "start":
                service.start()
            elif act == "wake":
                service.wake()
            elif act == "fail":
                duty.failures.append(StoreError("x"))
            elif act == "stop" and chance.random() < 0.2:
                assert await service.stop(30)
            elif act == "soon" and chance.random() < 0.2:
                service.stop_soon()
            await asyncio.sleep(0)

    async with asyncio.timeout(30):
        await asyncio.gather(*(hustle(*pair) for pair in zip(services, duties, strict=True)))
        assert all(await asyncio.gather(*(service.stop(30) for service in services)))
    ticks = [duty.ticks for duty in duties]
    await turn_the_loop()
    assert [duty.ticks for duty in duties] == ticks
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "pqrun fetch"]
