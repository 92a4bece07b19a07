"""What a measurement says: rows with their goals, printed as a table and kept as JSON for the results page and its plots."""

import importlib.metadata
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console
from rich.table import Table

__all__ = [
    "PACKAGES",
    "RESULTS",
    "Measured",
    "Reach",
    "Report",
    "at_least",
    "at_most",
    "print_rows",
    "read_report",
    "versions",
    "write_report",
]

RESULTS = Path(__file__).parent / "results"
"""Where reports are written by default, as NAME.json."""

PACKAGES = ("pqrun", "asyncpg", "pydantic", "msgspec", "uvloop")


class Reach(msgspec.Struct, frozen=True):
    """A goal: what is to be reached, in words and as a number."""

    text: str
    bound: float
    side: Literal["at least", "at most"] = "at least"

    def holds(self, value: float) -> bool:
        """Whether this value reaches it."""
        return value >= self.bound if self.side == "at least" else value <= self.bound


def at_least(bound: float, text: str) -> Reach:
    """A goal that higher values reach."""
    return Reach(text, bound, "at least")


def at_most(bound: float, text: str) -> Reach:
    """A goal that lower values reach."""
    return Reach(text, bound, "at most")


class Measured(msgspec.Struct, frozen=True):
    """One row of a report."""

    id: str
    """Unique among all measurements: ``NAME.part``."""
    what: str
    value: float
    unit: str
    """Such as "jobs/s", "ms", "MB"; "ratio" where it is one of two values of the same run."""
    reach: Reach | None = None
    """None: reported, without a goal."""
    against: str | None = None
    """What it is a ratio of."""
    samples: list[float] = []
    """The repetitions that ``value`` is the median of; or a series over time, for a plot."""

    @property
    def reached(self) -> bool | None:
        """Whether the goal was reached; None without one."""
        return None if self.reach is None else self.reach.holds(self.value)


class _Row(Measured, frozen=True, kw_only=True):
    """A row as it is written: whoever reads the file need not compare."""

    is_reached: bool | None = msgspec.field(name="reached", default=None)


class Report(msgspec.Struct, frozen=True):
    """One run of a measurement."""

    name: str
    command: str
    seconds: float
    """How long it took."""
    versions: dict[str, str]
    rows: list[Measured]
    quick: bool = False
    """Small numbers, to see that it works: no figure to show."""


def versions(server: str) -> dict[str, str]:
    """What was measured, on what; ``server`` is PostgreSQL's version."""
    found = {"python": platform.python_version(), "postgres": server, "cores": str(os.cpu_count() or 0)}
    found |= {name: importlib.metadata.version(name) for name in PACKAGES}
    return found | {"system": f"{platform.system()} {platform.release()} {platform.machine()}"}


def write_report(report: Report, path: Path) -> None:
    """Write it as JSON; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [_Row(**{n: getattr(r, n) for n in r.__struct_fields__}, is_reached=r.reached) for r in report.rows]
    written = {**msgspec.to_builtins(report), "rows": msgspec.to_builtins(rows)}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(written)) + b"\n")


def read_report(path: Path) -> Report:
    """Read what `write_report` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Report)


def print_rows(rows: Iterable[Measured], console: Console) -> None:
    """Print a table."""
    table = Table("id", "what", "value", "goal", "reached")
    for row in rows:
        goal = "" if row.reach is None else row.reach.text
        mark = {None: "", True: "yes", False: "NO"}[row.reached]
        table.add_row(row.id, row.what, _shown(row), goal, mark)
    console.print(table)


def _shown(row: Measured) -> str:
    digits = 0 if abs(row.value) >= 1_000 else 1 if abs(row.value) >= 100 else 3
    unit = f"of {row.against}" if row.unit == "ratio" and row.against else row.unit
    spread = f" ({_spread(row.samples, digits)})" if 1 < len(row.samples) <= MOST_SHOWN else ""
    return f"{row.value:,.{digits}f} {unit}{spread}"


MOST_SHOWN = 9
"""A longer list of samples is a series."""


def _spread(samples: Sequence[float], digits: int) -> str:
    return f"{min(samples):,.{digits}f} to {max(samples):,.{digits}f}"
