"""Claims: which jobs a worker takes, and what it learns about the lanes on the way. One kept connection."""

from collections.abc import Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Final, NamedTuple

from pqrun.job.record import Claim, Job
from pqrun.store.link import Link
from pqrun.store.rows import claimed_job

__all__ = ["ClaimBatch", "Claimer", "Lane", "LaneLook", "Promotion", "Survey"]

BEGINNING = datetime.min.replace(tzinfo=UTC)
"""Before all that is ever due."""

PROMOTE_ROWS = 1_000
"""Due jobs promoted by one statement."""

FORGOTTEN_ROWS = 1_000
"""Claims taken up again by one look."""

_LANE_AND_PLACE: Final = itemgetter(0, 1)  # of a row of claim.sql

SURVEY_LANES = 1_000
"""Lanes (queue and priority) that one survey returns at most."""


class Lane(NamedTuple):
    """A queue and a priority: jobs in it are claimed in order of ``place``."""

    queue: str
    priority: int


class LaneLook(NamedTuple):
    """How far a claim looked into a lane: all places up to ``place`` are taken, locked or not served."""

    lane: Lane
    place: int


class ClaimBatch(NamedTuple):
    """What one claim brought: jobs in the order of lanes and places, and how far each lane was looked at.

    ``is_barred``: more is there, but the next job may only be claimed into a free slot. ``cut``: those of the looks that ended where
    ``look`` rows were looked at, of a claim that was not filled: what is behind them was not seen.
    """

    jobs: list[Job]
    looks: list[LaneLook]
    is_barred: bool
    cut: Sequence[LaneLook] = ()


class Survey(NamedTuple):
    """The lanes that have READY jobs, and whether a job that lost its worker waits."""

    lanes: list[Lane]
    has_suspect: bool


class Promotion(NamedTuple):
    """What became READY, how far the index was read, the time until the next job is due, and the database's clock (epoch seconds)."""

    lanes: list[Lane]
    jobs: int
    has_suspect: bool
    last_run_after: datetime | None
    next_in_seconds: float | None
    clock: float | None = None


class Claimer:
    """The statements of fetching, on one kept connection, for one registered worker."""

    def __init__(self, link: Link, *, worker: int, worker_id: str) -> None:
        self._link = link
        self._worker = worker
        self._worker_id = worker_id

    async def claim(
        self,
        lanes: Sequence[tuple[Lane, int]],
        types: Sequence[str],
        proven: Sequence[str],
        alive: Sequence[int],
        *,
        limit: int,
        look: int,
        free: int,
    ) -> ClaimBatch:
        """Claim up to ``limit`` jobs of ``types`` from the lanes, best first, each looked at behind its cursor.

        ``free`` slots are idle now; beyond them only ``proven`` types with more than one attempt are taken. ``alive`` ids are not.
        """
        queues = [lane.queue for lane, _ in lanes]
        priorities = [lane.priority for lane, _ in lanes]
        cursors = [cursor for _, cursor in lanes]
        own = (self._worker, self._worker_id)
        rows = await self._link.run("claim", queues, priorities, cursors, types, limit, look, *own, free, proven, alive)
        claimed = [row for row in rows if row["id"] is not None]
        claimed.sort(key=_LANE_AND_PLACE)
        looks: dict[int, int] = {row[0]: row[1] for row in claimed}  # the last of each lane stays: its highest place
        is_barred = False
        cut: list[LaneLook] = []
        for number, place, _, looked in (
            () if len(claimed) == len(rows) else [row[:4] for row in rows if row["id"] is None]
        ):
            if place is None:
                is_barred = True
                continue
            looks[number] = max(place, looks.get(number, 0))
            if looked >= look:
                cut.append(LaneLook(lanes[number - 1][0], looks[number]))
        jobs = [claimed_job(row, self._worker_id) for row in claimed]
        return ClaimBatch(jobs, [LaneLook(lanes[n - 1][0], place) for n, place in looks.items()], is_barred, cut)

    async def claim_suspect(
        self, queues: Sequence[str] | None, types: Sequence[str], alive: Sequence[int]
    ) -> Job | None:
        """Claim one job that was running when a worker died, if any waits."""
        rows = await self._link.run("claim_suspect", queues, types, self._worker, self._worker_id, alive)
        return claimed_job(rows[0], self._worker_id) if rows else None

    async def find_forgotten(self, known: Sequence[Claim]) -> list[Job]:
        """Return jobs that are claimed for this worker and that it does not know of: the answer to their claim was lost."""
        claims = [claim.claim_id for claim in known]
        return [
            claimed_job(row, self._worker_id)
            for row in await self._link.run("find_forgotten", self._worker, claims, FORGOTTEN_ROWS)
        ]

    async def survey(self, queues: Sequence[str] | None) -> Survey:
        """List the lanes that have jobs; None: of all queues."""
        rows = await self._link.run("survey", queues, SURVEY_LANES)
        lanes = [Lane(row["queue"], row["priority"]) for row in rows if not row["suspect"]]
        return Survey(lanes, any(row["suspect"] for row in rows))

    async def promote(self, after: datetime | None) -> Promotion:
        """Make due jobs READY, reading the index from ``after`` on (None: from its start)."""
        rows = await self._link.run("promote", after or BEGINNING, PROMOTE_ROWS)
        lanes = [Lane(row["queue"], row["priority"]) for row in rows if row["queue"] is not None]
        return Promotion(
            lanes,
            sum(row["jobs"] for row in rows),
            any(row["suspect"] for row in rows),
            max((row["last_run_after"] for row in rows if row["last_run_after"] is not None), default=None),
            next((row["next_in_seconds"] for row in rows if row["queue"] is None), None),
            next((row["clock"] for row in rows if row["queue"] is None), None),
        )
