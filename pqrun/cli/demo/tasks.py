"""The tasks of the demo: one reads a source file, one adds up what the others have stored.

As in any deployment, the environment names the database: while the demo runs, or after it with ``--path DIR``, another terminal can
run the same tasks with ``PQRUN_DSN=embedded:DIR pqrun worker pqrun.cli.demo.tasks:jobs``.
"""

import ast
import asyncio
import threading
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel
from typing_extensions import override

from pqrun import App, BackoffPolicy, JobContext, JobFailed

__all__ = ["FileIndex", "Files", "SourceFile", "Totals", "add", "add_up", "index_file", "jobs", "read_index"]


class SourceFile(BaseModel):
    """A Python file to read."""

    path: str


class FileIndex(BaseModel):
    """What is in one file."""

    lines: int
    functions: int
    classes: int
    imports: list[str]
    """The top-level modules that it imports, sorted, each once."""


class Files(BaseModel):
    """Jobs of ``index_file`` whose results are to be added up."""

    job_ids: list[int]


class Totals(BaseModel):
    """What is in many files."""

    files: int
    broken: int
    """Files that are no Python."""
    lines: int
    functions: int
    classes: int
    imports: dict[str, int]
    """How many files import a module."""


class Soon(BackoffPolicy):
    """Tries again after 0.1 s, then 0.2 s, up to half a second."""

    @override
    def retry_delay(self, attempts: int) -> timedelta:
        return timedelta(seconds=min(0.1 * attempts, 0.5))


jobs = App()

# Two threads that parse at once confuse the parser of some Python versions ("recursion depth mismatch").
_parsing = threading.Lock()


@jobs.task(payload=SourceFile, dedupe_key="index:{path}", max_attempts=3, timeout=60, backoff=Soon())
def index_file(ctx: JobContext, payload: SourceFile) -> FileIndex:
    """Read one file; a plain function, so it runs in a thread. A file that is no Python raises SyntaxError."""
    ctx.logger.debug("reading")
    return read_index(Path(payload.path))


# A lower priority: its turn comes when every file has been started.
@jobs.task(payload=Files, priority=-1, max_attempts=200, timeout=60, backoff=Soon())
async def add_up(ctx: JobContext, payload: Files) -> Totals:
    """Add up stored results; raises ResultTimeout, and so is tried again soon, as long as one is missing."""
    found = await asyncio.gather(*(_stored_index(job_id) for job_id in payload.job_ids))
    ctx.logger.debug("adding up %d results", len(found))
    return add(found)


async def _stored_index(job_id: int) -> FileIndex | None:
    try:
        return await index_file.handle(job_id).result(timeout=1)
    except JobFailed:
        return None


def read_index(path: Path) -> FileIndex:
    """Parse a file and count; raises SyntaxError."""
    source = path.read_bytes()
    with _parsing:
        tree = ast.parse(source, str(path))
    nodes = list(ast.walk(tree))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return FileIndex(
        lines=len(source.splitlines()),
        functions=sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes),
        classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
        imports=sorted({name.partition(".")[0] for name in imported}),
    )


def add(found: Iterable[FileIndex | None]) -> Totals:
    """Add up; None stands for a file that is no Python."""
    totals = Totals(files=0, broken=0, lines=0, functions=0, classes=0, imports={})
    imports: Counter[str] = Counter()
    for index in found:
        if index is None:
            totals.broken += 1
            continue
        totals.files += 1
        totals.lines += index.lines
        totals.functions += index.functions
        totals.classes += index.classes
        imports.update(index.imports)
    totals.imports = dict(imports)
    return totals
