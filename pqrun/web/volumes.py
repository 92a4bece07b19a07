"""What went through queues and tasks, for the pages: rows of statistics, gathered by step of time and as a whole.

Never counted from jobs: workers write a row per minute, and what is read here does not grow with the tables of jobs.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from pqrun.errors import StoreError
from pqrun.job.statistics import Histogram, StatisticsRow
from pqrun.store.pages import STATEMENT_CANCELLED
from pqrun.store.statistics import StatisticsBy, read_statistics
from pqrun.web.periods import PERIOD_DEFAULT, PERIODS, Period
from pqrun.web.visit import Visit

__all__ = ["Counted", "Step", "Volume", "chosen_period", "gathered", "read_volumes"]


class Step(NamedTuple):
    """One step of time."""

    at: datetime
    arrived: int = 0
    """Jobs that were started for the first time."""
    ended: int = 0
    """Jobs that are over: done, failed, or cancelled while they ran."""
    done: int = 0
    failed: int = 0
    retrying: int = 0
    """Attempts that failed and are tried again."""
    wait_p50: float | None = None
    """Seconds between being due and being started; None where nothing was started."""
    wait_p95: float | None = None


class Volume(NamedTuple):
    """A queue, a task, or all of them, over a period."""

    steps: Sequence[Step]
    """All of the period, those in which nothing happened too."""
    started: int
    arrived: int
    done: int
    failed: int
    retrying: int
    cancelled: int
    lost: int
    wait: Histogram
    run: Histogram

    @property
    def success(self) -> float | None:
        """The share of jobs that ended well, of those that ended well or badly; None without any."""
        over = self.done + self.failed
        return self.done / over if over else None

    @property
    def ins(self) -> Sequence[int | None]:
        """Jobs that were started for the first time, by step."""
        return _begun([step.arrived for step in self.steps])

    @property
    def outs(self) -> Sequence[int | None]:
        """Jobs that ended, by step."""
        return _begun([step.ended for step in self.steps])


class Counted(NamedTuple):
    """What was read."""

    period: Period
    by_key: Mapping[str, Volume]
    total: Volume
    is_refused: bool
    """Whether the database would have needed too long: then nothing is known."""

    def of(self, key: str) -> Volume:
        """Return the volume of a queue or a task, an empty one where nothing happened."""
        found = self.by_key.get(key)
        return gathered((), [step.at for step in self.total.steps]) if found is None else found


def chosen_period(visit: Visit) -> Period:
    """Return what ``?range=`` says, an hour by default."""
    return PERIODS.get(visit.query.get("range", ""), PERIOD_DEFAULT)


async def read_volumes(
    visit: Visit, now: datetime, by: StatisticsBy, *, queue: str | None = None, job_type: str | None = None
) -> Counted:
    """Read what workers counted in the chosen period, in a transaction of its own: if that takes too long the rest of a page stands."""
    period = chosen_period(visit)
    times = period.times(now)
    rows: list[StatisticsRow] = []
    is_refused = False
    try:
        async with visit.reading() as session:
            until = times[-1] + period.step
            rows = await read_statistics(
                session, times[0], until, step=period.step, by=by, queue=queue, job_type=job_type
            )
    except StoreError as error:
        if error.sqlstate != STATEMENT_CANCELLED:
            raise
        is_refused = True
    by_key: dict[str, list[StatisticsRow]] = defaultdict(list)
    for row in rows:
        by_key[row.key].append(row)
    volumes = {key: gathered(own, times) for key, own in by_key.items()}
    return Counted(period, volumes, gathered(rows, times), is_refused)


def _begun(counts: Sequence[int]) -> Sequence[int | None]:
    """Workers write a minute when it is over: a last step without any is not known yet, and no line falls to zero for it."""
    return [*counts[:-1], counts[-1] or None] if counts else []


def gathered(rows: Iterable[StatisticsRow], times: Sequence[datetime]) -> Volume:
    """Add rows up: those of one step, and all of them."""
    rows = list(rows)
    by_step: dict[datetime, list[StatisticsRow]] = defaultdict(list)
    for row in rows:
        by_step[row.at].append(row)
    return Volume(
        steps=[_step(at, by_step.get(at, ())) for at in times],
        started=sum(row.started for row in rows),
        arrived=sum(row.arrived for row in rows),
        done=sum(row.done for row in rows),
        failed=sum(row.failed for row in rows),
        retrying=sum(row.retrying for row in rows),
        cancelled=sum(row.cancelled for row in rows),
        lost=sum(row.lost for row in rows),
        wait=sum((row.wait for row in rows), Histogram()),
        run=sum((row.run for row in rows), Histogram()),
    )


def _step(at: datetime, rows: Sequence[StatisticsRow]) -> Step:
    if not rows:
        return Step(at)
    wait = sum((row.wait for row in rows), Histogram())
    return Step(
        at=at,
        arrived=sum(row.arrived for row in rows),
        ended=sum(row.done + row.failed + row.cancelled for row in rows),
        done=sum(row.done for row in rows),
        failed=sum(row.failed for row in rows),
        retrying=sum(row.retrying for row in rows),
        wait_p50=wait.percentile(50),
        wait_p95=wait.percentile(95),
    )
