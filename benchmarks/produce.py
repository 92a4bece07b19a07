"""``python -m benchmarks.produce DSN``: a producer process of a measurement; it does what its parent sends it, one JSON line each.

It is the public API on uvloop. Only ``--silent`` reaches inside: single defers then travel on the same path, in the same statements, and
nothing of it notifies, which no option of the library allows; that is what notifications are compared with.
"""

import argparse
import asyncio
import random
import secrets
import sys
import time
from typing import assert_never

import msgspec
import uvloop

from benchmarks.no_op import Payload
from pqrun import App, JobContext
from pqrun.store.gathering import Gatherer

__all__ = ["Bulk", "Count", "Defers", "OpenLoop", "Order", "Paced", "Sent", "main"]


class Defers(msgspec.Struct, frozen=True, tag=True):
    """So many coroutines, each one single defer after another, for so long."""

    coroutines: int
    seconds: float


class Bulk(msgspec.Struct, frozen=True, tag=True):
    """One ``defer_many``, with a dedupe key of its own for each job or without any."""

    jobs: int
    is_keyed: bool = False


class Paced(msgspec.Struct, frozen=True, tag=True):
    """Single defers, with a random pause between two of them."""

    jobs: int
    least_pause: float
    most_pause: float


class OpenLoop(msgspec.Struct, frozen=True, tag=True):
    """Defers at a rate, whatever becomes of those before: single ones at random times, or a ``defer_many`` every ``batch_seconds``."""

    rate: float
    seconds: float
    batch_seconds: float = 0.0


Order = Defers | Bulk | Paced | OpenLoop


class Count(msgspec.Struct, frozen=True, tag=True):
    """What Defers and Bulk say."""

    jobs: int
    seconds: float

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return self.jobs / self.seconds


class Sent(msgspec.Struct, frozen=True, tag=True):
    """What Paced and OpenLoop say: ids, and for each when its defer was called (or was to be called), in seconds of the epoch."""

    ids: list[int]
    times: list[float]


def main() -> None:
    """Serve orders until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    parser.add_argument("--silent", action="store_true")
    arguments = parser.parse_args()
    if arguments.silent:
        _silence()
    uvloop.run(_serve(arguments.dsn))


def _silence() -> None:
    """Every batch of single defers is written without notification, and none follows."""

    def is_loud(*_: object) -> bool:
        return False

    def note(*_: object, **__: object) -> None:
        return None

    Gatherer._is_loud = is_loud  # type: ignore[method-assign,assignment]  # see the module's docstring
    Gatherer._note = note  # type: ignore[method-assign]


class _Producer:
    """The app of one producer."""

    def __init__(self, dsn: str) -> None:
        self.app = App(dsn=dsn)

        @self.app.task(payload=Payload)
        async def no_op(_ctx: JobContext, payload: Payload) -> dict[str, bool]:  # noqa: ARG001  # never called here
            return {"ok": True}

        self._no_op = no_op
        self._sent = Sent([], [])

    async def defer(self, number: int) -> None:
        """Defer one and keep its id and the time before."""
        at = time.time()
        handle = await self._no_op.defer(t=at, i=number, s="one")
        self._sent.ids.append(handle.id)
        self._sent.times.append(at)

    async def do(self, order: Order) -> Count | Sent:
        """Carry out an order."""
        self._sent = Sent([], [])
        match order:
            case Defers():
                return await self._defer_for(order)
            case Bulk():
                return await self._defer_bulk(order)
            case Paced():
                for number in range(order.jobs):
                    await asyncio.sleep(random.uniform(order.least_pause, order.most_pause))
                    await self.defer(number)
            case OpenLoop() if order.batch_seconds:
                await self._defer_batches(order)
            case OpenLoop():
                await self._defer_at_random(order)
            case _:
                assert_never(order)
        return self._sent

    async def _defer_for(self, order: Defers) -> Count:
        count = 0
        began = time.perf_counter()
        until = began + order.seconds

        async def go_on() -> None:
            nonlocal count
            while time.perf_counter() < until:
                await self._no_op.defer(t=began, i=count, s="one")
                count += 1

        await asyncio.gather(*(go_on() for _ in range(order.coroutines)))
        return Count(count, time.perf_counter() - began)

    async def _defer_bulk(self, order: Bulk) -> Count:
        task, mark = self._no_op, secrets.token_hex(4)
        if order.is_keyed:
            calls = [task.options(dedupe_key=f"{mark}:{i}").call(t=1.5, i=i, s="many") for i in range(order.jobs)]
        else:
            calls = [task.call(t=1.5, i=i, s="many") for i in range(order.jobs)]
        began = time.perf_counter()
        await self.app.defer_many(calls)
        return Count(order.jobs, time.perf_counter() - began)

    async def _defer_at_random(self, order: OpenLoop) -> None:
        """Times between two arrivals are exponential; each defer is a task, so that a slow one delays no other."""
        arrival = began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            number = 0
            while (arrival := arrival + random.expovariate(order.rate)) < began + order.seconds:
                await asyncio.sleep(max(arrival - time.perf_counter(), 0.0))
                group.create_task(self.defer(number))
                number += 1

    async def _defer_batches(self, order: OpenLoop) -> None:
        size = round(order.rate * order.batch_seconds)
        began, epoch = time.perf_counter(), time.time()
        async with asyncio.TaskGroup() as group:
            for number in range(round(order.seconds / order.batch_seconds)):
                due = number * order.batch_seconds
                await asyncio.sleep(max(began + due - time.perf_counter(), 0.0))
                group.create_task(self._defer_batch(size, epoch + due))

    async def _defer_batch(self, size: int, due: float) -> None:
        handles = await self.app.defer_many([self._no_op.call(t=due, i=i, s="batch") for i in range(size)])
        self._sent.ids.extend(handle.id for handle in handles)
        self._sent.times.extend([due] * size)


async def _serve(dsn: str) -> None:
    producer = _Producer(dsn)
    loop = asyncio.get_running_loop()
    async with producer.app:
        await producer.defer(0)  # connections are there, statements prepared
        _tell({})
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            _tell(await producer.do(msgspec.json.decode(line, type=Order)))


def _tell(said: object) -> None:
    sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
