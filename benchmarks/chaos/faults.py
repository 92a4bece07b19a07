"""What a run does to its workers and its database, one kind after the other."""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from benchmarks.chaos.crowd import Crowd, Member
from benchmarks.chaos.log import FaultBegan, FaultOver, Log, Met
from benchmarks.chaos.sites import Pair, Single, Site, standing
from tests.support.database import connected
from tests.support.proxy import Proxied

__all__ = ["FAULTS", "Scene", "hurt"]

PAUSE_SECONDS = (0.5, 3.0)
"""Between two faults: often before the last one is got over."""

SHORT_STOP_SECONDS = 5.0

LONG_STOP_SECONDS = 34.0
"""Taken for dead even by those who see a session lock held."""

AWAY_SECONDS = (0.5, 6.0)
"""How long a network or a server is away."""

KEEPALIVE_SECONDS = 10.0

RELEASE_SECONDS = 45.0
"""A worker ends within its ``shutdown_timeout``, 30 s, whatever the database does."""

ALL_BACKENDS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


@dataclass
class Scene:
    """What faults act on, and how."""

    site: Site
    crowd: Crowd
    log: Log
    random: random.Random
    ends: float
    """Monotonic time after which no fault should last."""
    faults: int = 0
    """So many so far."""

    @property
    def left(self) -> float:
        """Seconds until then."""
        return self.ends - time.monotonic()

    def began(self, kind: str, detail: str = "", members: tuple[Member, ...] = ()) -> int:
        """Note a fault; return its number."""
        self.faults += 1
        self.log.write(FaultBegan(self.faults, kind, detail, tuple(member.process.pid for member in members)))
        return self.faults

    def over(self, number: int) -> None:
        """Note that what was broken is whole again."""
        self.log.write(FaultOver(number))


async def kill(scene: Scene) -> None:
    """SIGKILL one worker, two, or all."""
    members = scene.crowd.choose(scene.random.choice((1, 1, 1, 2, 9)))
    number = scene.began("kill", f"{len(members)} workers", tuple(members))
    for member in members:
        member.send(signal.SIGKILL)
    scene.over(number)


async def stop(scene: Scene) -> None:
    """SIGSTOP one or two workers; after SIGCONT they meet what has become of their jobs."""
    seconds = (
        LONG_STOP_SECONDS if scene.left > LONG_STOP_SECONDS and scene.random.random() < 0.4 else SHORT_STOP_SECONDS
    )
    members = scene.crowd.choose(scene.random.choice((1, 2)))
    number = scene.began("stop", f"{len(members)} workers, {seconds:g} s", tuple(members))
    try:
        for member in members:
            member.send(signal.SIGSTOP)
        await asyncio.sleep(seconds)
    finally:
        for member in members:
            member.send(signal.SIGCONT)
    scene.over(number)


async def release(scene: Scene) -> None:
    """SIGTERM one worker or two, and wait until they have ended."""
    members = scene.crowd.choose(scene.random.choice((1, 2)))
    number = scene.began("release", f"{len(members)} workers", tuple(members))
    for member in members:
        member.send(signal.SIGTERM)
    _, late = await asyncio.wait(
        [asyncio.ensure_future(member.ended.wait()) for member in members], timeout=RELEASE_SECONDS
    )
    if late:
        scene.log.write(Met(f"a worker that has not ended {RELEASE_SECONDS:g} s after its SIGTERM"))
        for member in members:
            member.send(signal.SIGKILL)
    scene.over(number)


async def restart(scene: Scene) -> None:
    """Shut the server down as a crash would, and start it again."""
    assert isinstance(scene.site, Single)
    seconds = scene.random.uniform(*AWAY_SECONDS) / 2
    number = scene.began("restart", f"away for {seconds:.1f} s")
    await scene.site.restart(seconds)
    scene.over(number)


async def backends(scene: Scene) -> None:
    """Terminate all backends, up to three times in a row."""
    times = scene.random.randint(1, 3)
    number = scene.began("backends", f"{times} times")
    async with connected(scene.site.direct_dsn) as connection:
        for _ in range(times):
            await connection.execute(ALL_BACKENDS)
            await asyncio.sleep(scene.random.uniform(0, 1))
    scene.over(number)


async def reset(scene: Scene) -> None:
    """End all connections by a RST."""
    number = scene.began("reset")
    for one in standing(scene.site):
        one.reset()
    scene.over(number)


async def half_close(scene: Scene) -> None:
    """Close all connections in the direction to the client, as far as it can see."""
    number = scene.began("half-close")
    for one in standing(scene.site):
        one.to_client.stall()  # nothing can follow an end
        one.half_close()
    scene.over(number)


async def stall(scene: Scene) -> None:
    """Hold back what passes through all connections; what was held back arrives late."""
    number, held = await _hold_back(scene, "stall")
    for one in held:
        one.resume()
    scene.over(number)


async def cut(scene: Scene) -> None:
    """Cut all connections without a word; the server hears of it later, and the clients still later, as from their keepalive."""
    number, held = await _hold_back(scene, "cut")
    for one in held:
        one.hang_up()
        asyncio.get_running_loop().call_later(KEEPALIVE_SECONDS, one.reset)
    scene.over(number)


async def _hold_back(scene: Scene, kind: str) -> tuple[int, list[Proxied]]:
    seconds = scene.random.uniform(*AWAY_SECONDS)
    number = scene.began(kind, f"{seconds:.1f} s")
    held = standing(scene.site)
    for one in held:
        one.stall()
    await asyncio.sleep(seconds)
    return number, held


async def unreachable(scene: Scene) -> None:
    """Reset all connections, and refuse new ones, or take them and answer nothing."""
    seconds = scene.random.uniform(*AWAY_SECONDS)
    is_deaf = scene.random.random() < 0.5
    number = scene.began("unreachable", f"{'deaf' if is_deaf else 'refusing'} for {seconds:.1f} s")
    for proxy in scene.site.proxies:
        proxy.is_deaf, proxy.is_unreachable = is_deaf, not is_deaf
        proxy.each(Proxied.reset)
    await asyncio.sleep(seconds)
    for proxy in scene.site.proxies:
        proxy.is_deaf = proxy.is_unreachable = False
        proxy.each(Proxied.resume)
    scene.over(number)


async def failover(scene: Scene) -> None:
    """SIGKILL the primary and promote its standby; then the new primary gets a standby."""
    assert isinstance(scene.site, Pair)
    seconds = scene.random.uniform(0, 2)
    number = scene.began("failover", f"promoted after {seconds:.1f} s")
    await scene.site.fail_over(seconds, lambda: scene.over(number))


FAULTS: dict[str, Callable[[Scene], Awaitable[None]]] = {
    "kill": kill,
    "restart": restart,
    "reset": reset,
    "stop": stop,
    "backends": backends,
    "stall": stall,
    "release": release,
    "cut": cut,
    "half-close": half_close,
    "unreachable": unreachable,
    "failover": failover,
}


async def hurt(scene: Scene, kinds: list[str]) -> None:
    """Inject these kinds in turn, each round in another order, until the scene ends."""
    while True:
        for kind in scene.random.sample(kinds, len(kinds)):
            if scene.left <= 0:
                return
            await FAULTS[kind](scene)
            await asyncio.sleep(min(scene.random.uniform(*PAUSE_SECONDS), max(scene.left, 0)))
