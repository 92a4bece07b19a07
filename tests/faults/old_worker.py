"""A worker and a producer as they were before migration 0002: their statements, word for word, in a loop.

``before_0002`` holds the statements of that version which a worker at work needs and which have changed since; those that have not are
today's. Their plans and parameters are what a migration can break, so they run prepared, on connections that are kept.
"""

import asyncio
import json
from pathlib import Path

import asyncpg

from pqrun.store.statements import render
from tests.support.rows import make_worker

FOLDER = Path(__file__).parent / "before_0002"
BATCH = 20


def statement(name: str) -> str:
    """Of then."""
    return render((FOLDER / f"{name}.sql").read_text(), "pqrun")


class OldProducer:
    """Defers one job after another, and now and then several."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self.deferred = 0
        self.is_over = False

    async def run(self) -> None:
        """Defer until ``is_over``."""
        one = await self._connection.prepare(statement("enqueue_one"))
        many = await self._connection.prepare(statement("enqueue"))
        while not self.is_over:
            payload = json.dumps({"n": self.deferred})
            await one.fetch("t", payload, "default", 0, 5, None, f"k{self.deferred}", None, None, None, True)
            none = [None] * 3
            columns = [["t"] * 3, [payload] * 3, ["default"] * 3, [0] * 3, [5] * 3, none, none, none, none, none]
            await many.fetch(*columns, True)
            self.deferred += 4
            await asyncio.sleep(0.002)


class OldWorker:
    """Claims what there is and settles it: DONE, and every seventh job FAILED."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self.done = 0
        self.is_over = False

    async def run(self) -> None:
        """Work until ``is_over`` and nothing is left."""
        worker = await make_worker(self._connection, "old")
        claim = await self._connection.prepare(statement("claim"))
        settle = await self._connection.prepare(statement("settle"))
        while True:
            lanes = [["default"], [0], [0]]
            rows = await claim.fetch(*lanes, ["t"], BATCH, BATCH, worker, "old", BATCH, ["t"], [])
            rows = [row for row in rows if row["id"] is not None]
            if not rows and self.is_over:
                return
            if rows:
                await self._settle(settle, rows)
            await asyncio.sleep(0.002)

    async def _settle(self, settle: asyncpg.prepared_stmt.PreparedStatement, rows: list[asyncpg.Record]) -> None:
        rows.sort(key=lambda row: int(row["id"]))
        ends = ["FAILED" if row["id"] % 7 == 0 else "DONE" for row in rows]
        errors = ["ValueError: x" if end == "FAILED" else None for end in ends]
        ids, claims = (",".join(str(row[name]) for row in rows) for name in ("id", "claim_id"))
        durations = ",".join("1" for _ in rows)
        told = await settle.fetch(
            f"{{{ids}}}", f"{{{claims}}}", f"{{{','.join(ends)}}}", [], errors, f"{{{durations}}}", [], [], [], [], []
        )
        assert sum(row["ended"] or 0 for row in told) == len(rows)
        self.done += len(rows)
