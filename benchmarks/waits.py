"""What the server's processes wait for during a measurement: pg_stat_activity, looked at again and again."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.database import connected

__all__ = ["Waits", "sampled_waits"]

LOOK_SECONDS = 0.01

ACTIVE = """
SELECT coalesce(wait_event_type, '') AS kind, coalesce(wait_event, '') AS event, count(*) AS backends
  FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND datname = current_database() AND pid <> pg_backend_pid() AND state = 'active'
 GROUP BY 1, 2
"""

CLIENT = "Client"
"""The kind of waits for the other side of a connection."""


class Waits:
    """Counts of active backends by what they wait for: ``("", "")`` is none, they compute."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    @property
    def looked(self) -> int:
        """Backends seen at work, over all looks."""
        return sum(count for (kind, _), count in self.counts.items() if kind != CLIENT)

    def of(self, kind: str) -> int:
        """Of these, how many waited for this kind (``Lock``, ``LWLock``, ``IO`` …)."""
        return sum(count for (found, _), count in self.counts.items() if found == kind)

    @property
    def on_notify(self) -> int:
        """How many waited for the queue of notifications, or for its lock: the commits of two that notify exclude each other."""
        return sum(
            count
            for (kind, event), count in self.counts.items()
            if event.startswith("Notify") or (kind, event) == ("Lock", "object")
        )

    def share(self, count: int) -> float:
        """As a percentage of what was looked at."""
        return 100 * count / max(self.looked, 1)

    def most(self, number: int = 4) -> str:
        """The most frequent ones, in words."""
        ordered = sorted(((n, *event) for event, n in self.counts.items() if event[0] != CLIENT), reverse=True)
        names = [f"{kind}:{event}" if kind else "none" for _, kind, event in ordered]
        return ", ".join(
            f"{name} {self.share(n):.0f} %" for name, (n, _, _) in zip(names[:number], ordered[:number], strict=True)
        )


@asynccontextmanager
async def sampled_waits(dsn: str) -> AsyncIterator[Waits]:
    """Look every few milliseconds while the block runs."""
    waits = Waits()
    async with connected(dsn) as connection:
        active = await connection.prepare(ACTIVE)

        is_over = False

        async def look() -> None:
            while not is_over:
                for row in await active.fetch():
                    waits.counts[row["kind"], row["event"]] += row["backends"]
                await asyncio.sleep(LOOK_SECONDS)

        looking = asyncio.create_task(look())
        try:
            yield waits
        finally:
            is_over = True
            await looking
