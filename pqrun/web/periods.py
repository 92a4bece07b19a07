"""The spans of time that a page may show, and the steps that its charts are drawn in. Values only: the clock is given."""

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

__all__ = ["PERIODS", "PERIOD_DEFAULT", "Period"]


class Period(NamedTuple):
    """A span of time up to now, in steps that begin at round times."""

    name: str
    """As in ``?range=``, and in queries: ``since:6h``."""
    step: timedelta
    """Whole minutes."""
    steps: int
    """How many steps; the last one has only begun."""

    def times(self, now: datetime) -> list[datetime]:
        """Return when each step begins, the last one being that of ``now``."""
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        last = now - (now - epoch) % self.step
        return [last - self.step * back for back in reversed(range(self.steps))]


PERIODS: Final = {
    period.name: period
    for period in (
        Period("15m", timedelta(minutes=1), 15),
        Period("1h", timedelta(minutes=2), 30),
        Period("6h", timedelta(minutes=10), 36),
        Period("24h", timedelta(minutes=30), 48),
        Period("7d", timedelta(hours=3), 56),
    )
}
"""By their names; seven days is what workers keep by default."""

PERIOD_DEFAULT: Final = PERIODS["1h"]
