"""What templates may call to draw: the charts, and the words for numbers in them."""

from collections.abc import Mapping
from typing import Final

from pqrun.job.statistics import BOUNDS_MS
from pqrun.web.charts import Series, histogram, lines, sparkline, stacked_bars
from pqrun.web.rendering import milliseconds, span

__all__ = ["FUNCTIONS"]

BUCKET_LABELS: Final = (*(f"to {milliseconds(bound)}" for bound in BOUNDS_MS), f"over {milliseconds(BOUNDS_MS[-1])}")
"""Of the buckets of a Histogram."""


def whole(value: float) -> str:
    """Return a count in words."""
    return f"{value:,.0f}"


FUNCTIONS: Final[Mapping[str, object]] = {
    "series": Series,
    "stacked_bars": stacked_bars,
    "lines": lines,
    "sparkline": sparkline,
    "histogram": histogram,
    "bucket_labels": BUCKET_LABELS,
    "span": span,
    "whole": whole,
}
"""By the names that templates use."""
