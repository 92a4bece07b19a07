"""The lean worker: the least that claims with SKIP LOCKED, decodes a payload, runs a task per job and stores its result, on a plain table.

No queues, retries, fences, leases, signs of life: what a job queue costs at least, in this language, on this server.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

import asyncpg
import msgspec

__all__ = ["BODY", "CLAIM", "INSERT", "TABLE", "drain_lean", "fill_lean"]

TABLE = """
CREATE TABLE lean (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name     text        NOT NULL,
    body     jsonb       NOT NULL,
    state    smallint    NOT NULL DEFAULT 0,
    rank     smallint    NOT NULL DEFAULT 0,
    tries    smallint    NOT NULL DEFAULT 0,
    due      timestamptz NOT NULL DEFAULT now(),
    made_at  timestamptz NOT NULL DEFAULT now(),
    owner    text,
    taken_at timestamptz,
    ended_at timestamptz,
    answer   jsonb
) WITH (fillfactor = 70);
CREATE INDEX lean_waiting ON lean (rank DESC, id) WHERE state = 0;
"""

INSERT = "INSERT INTO lean (name, body) SELECT $1::text, $2::jsonb RETURNING id"

CLAIM = """
UPDATE lean SET state = 1, tries = tries + 1, owner = $2, taken_at = now()
  FROM (SELECT id FROM lean WHERE state = 0 AND due <= now() ORDER BY rank DESC, id LIMIT $1 FOR UPDATE SKIP LOCKED) next
 WHERE lean.id = next.id
RETURNING lean.id, lean.name, lean.body, lean.tries
"""

END = """
UPDATE lean SET state = 2, ended_at = now(), answer = done.answer
  FROM unnest($1::bigint[], $2::jsonb[]) AS done (id, answer)
 WHERE lean.id = done.id
"""

BODY = '{"t": 1.5, "i": 7, "s": "no-op"}'

ANSWER = b'{"ok":true}'

BATCH = 500

AHEAD = 2
"""Claims that may wait for their turn."""


class _Body(msgspec.Struct):
    t: float
    i: int
    s: str


class _Prepared(Protocol):
    async def fetch(self, *args: object) -> list[asyncpg.Record]: ...


async def fill_lean(connection: asyncpg.Connection, count: int) -> None:
    """Make the table, with so many jobs in it, vacuumed and checkpointed."""
    await connection.execute(TABLE)
    await connection.execute(
        "INSERT INTO lean (name, body) SELECT 'no_op', $2::jsonb FROM generate_series(1, $1::integer)", count, BODY
    )
    await connection.execute("VACUUM (ANALYZE) lean")
    await connection.execute("CHECKPOINT")


async def drain_lean(dsn: str, count: int) -> float:
    """Do the jobs that are there, ``count`` in number; return the seconds that took."""
    claimer, ender = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    try:
        for connection in (claimer, ender):  # JSON as bytes, as it travels: a version number, then the text
            await connection.set_type_codec(
                "jsonb", schema="pg_catalog", encoder=_encode, decoder=_decode, format="binary"
            )
        worker = _Lean(await claimer.prepare(CLAIM), await ender.prepare(END))
        began = time.perf_counter()
        await worker.work(count)
        return time.perf_counter() - began
    finally:
        await asyncio.gather(claimer.close(), ender.close())


def _encode(value: bytes) -> bytes:
    return b"\x01" + value


def _decode(value: bytes) -> bytes:
    return value[1:]


async def _no_op(_body: _Body) -> bytes:
    return ANSWER


class _Lean:
    """Claims ahead on one connection while it writes ends on the other."""

    def __init__(self, claim: _Prepared, end: _Prepared) -> None:
        self._claim = claim
        self._end = end
        self._claimed: asyncio.Queue[Sequence[asyncpg.Record]] = asyncio.Queue(AHEAD)
        self._over: list[tuple[int, bytes]] = []
        self._news = asyncio.Event()
        self._decode = msgspec.json.Decoder(_Body).decode

    async def work(self, count: int) -> None:
        """Until so many have ended."""
        fetching, ending = asyncio.create_task(self._fetch()), asyncio.create_task(self._write(count))
        running: set[asyncio.Task[None]] = set()
        while jobs := await self._claimed.get():
            for job in jobs:
                task = asyncio.create_task(self._run(job))
                running.add(task)
                task.add_done_callback(running.discard)
        await ending
        await fetching

    async def _fetch(self) -> None:
        while jobs := await self._claim.fetch(BATCH, "lean"):
            await self._claimed.put(jobs)
        await self._claimed.put([])

    async def _run(self, job: asyncpg.Record) -> None:
        self._over.append((job[0], await _no_op(self._decode(job[2]))))
        self._news.set()

    async def _write(self, count: int) -> None:
        written = 0
        while written < count:
            await self._news.wait()
            self._news.clear()
            over, self._over = self._over, []
            await self._end.fetch([job_id for job_id, _ in over], [answer for _, answer in over])
            written += len(over)
