"""Every fenced block of README.md and docs/ runs, type-checks, and says what the code says.

A Python block is a whole program, or continues a named one: an HTML comment above its fence says so.

    <!-- name: shop -->              the block can be continued, and is what ``shop.py`` or ``shop:jobs`` means in a bash block
    <!-- continues: shop -->         the block is appended to that program
    <!-- request: POST /path -->     after the program, its ``app`` is served and must answer this with success
    <!-- from: examples/shop.py -->  the block stands in that file, which is run and checked where examples are

In a block that continues another, the statements from the first outermost ``await`` on run inside ``async with jobs`` beside a worker, as
the README tells its readers. A block that defines ``test_`` functions is run by pytest. SQL blocks of a file run in order on one database,
where roles get names of the test's own. A Python block with one of these is not run:

    <!-- refused: shop -->           after the program of that name, mypy --strict refuses each line that has a comment, and no other
    <!-- includes: examples/a.py --> the site shows that file here, which is run and checked where examples are

Two notes are for SQL:

    <!-- needs: pg_cron -->          ``cron.schedule`` is one that runs the command at once
    <!-- arguments: a|b -->          the values of its question marks, as a driver like JDBC would send them
"""

import ast
import itertools
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, get_args, get_type_hints

import asyncpg
import pytest

from benchmarks.schedules import clock_changes
from pqrun.cli.init import APP
from pqrun.config import WORKER_VARIABLES
from pqrun.declaration import CallOptions, DeclaredOptions, ScheduleOptions
from pqrun.job.definition import ScheduleDefinition
from pqrun.job.options import JobOptions
from pqrun.job.query import parse_query
from pqrun.job.record import NewJob
from pqrun.job.schedule import check_rule
from pqrun.testing.databases import TEST_DSN
from pqrun.worker_options import RETENTION_DEFAULT, WorkerOptions
from tests.support.database import connected
from tests.support.database import run as run_coroutine
from tests.support.installed import installed_in

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
DJANGO = ROOT / "examples" / "django_shop"
KINDS = {"python", "bash", "sql", "text", "yaml", "json"}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
VARIABLES = {
    "PQRUN_DSN",
    "DATABASE_URL",
    "PQRUN_WEB_SECRET",
    TEST_DSN,
    *(variable.name for variable in WORKER_VARIABLES),
}

RUN_COMMANDS = ("migrate", "--version")
"""Commands of pqrun that are cheap enough to be run as they stand; of others the help must know every option."""

PLAIN_COMMANDS = ("source ", "cd ", "pytest", "python -m venv ")
"""What every shell has, or a reader installs by its own name."""

COMMAND_GROUPS = ("schedules",)
"""Commands whose first word is a command of their own."""

SERVE = """

import asyncio

import httpx


async def serve() -> None:
    transport = httpx.ASGITransport(app=app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://docs") as client:
        (await client.request({method!r}, {path!r})).raise_for_status()


asyncio.run(serve())
"""
"""What a block with a ``request`` note is followed by: its lifespan, and one request."""


class Block(NamedTuple):
    """One fenced block; ``line`` is that of its fence."""

    page: str
    line: int
    kind: str
    notes: dict[str, str]
    text: str

    @property
    def place(self) -> str:
        """Page and line, as an id for pytest and a name for messages."""
        return f"{self.page}:{self.line}"


def read_blocks(page: Path) -> list[Block]:
    """Read the fenced blocks of a page, each with the comment right above it."""
    blocks: list[Block] = []
    lines = page.read_text().splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if start is None:
            start = number
            continue
        comment = re.fullmatch(r"<!-- (.+) -->", lines[start - 1]) if start else None
        notes = dict(note.split(": ", 1) for note in comment[1].split(", ")) if comment else {}
        text = "\n".join(lines[start + 1 : number]) + "\n"
        blocks.append(Block(str(page.relative_to(ROOT)), start + 1, lines[start].strip("` "), notes, text))
        start = None
    assert start is None, f"{page.name}: the block of line {start} does not end"
    return blocks


BLOCKS = [block for page in PAGES for block in read_blocks(page)]
EXCERPTS = [block for block in BLOCKS if "from" in block.notes]
REFUSED = [block for block in BLOCKS if "refused" in block.notes]
INCLUDED = [block for block in BLOCKS if "includes" in block.notes]
PYTHON = [block for block in BLOCKS if block.kind == "python" and block not in [*EXCERPTS, *REFUSED, *INCLUDED]]
BASH = [block for block in BLOCKS if block.kind == "bash"]
YAML = [block for block in BLOCKS if block.kind == "yaml"]
JSON = [block for block in BLOCKS if block.kind == "json"]
NAMED = {block.notes["name"]: block for block in PYTHON if "name" in block.notes}


def commands(file: Path) -> list[str]:
    """Return the indented lines of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return [line.strip() for line in text.splitlines() if line.startswith("    ")]


COMMANDED = [file for file in sorted((ROOT / "examples").glob("**/*.py")) if commands(file)]


def each(blocks: Iterable[Block]) -> pytest.MarkDecorator:
    """One test per block."""
    return pytest.mark.parametrize("block", [pytest.param(block, id=block.place) for block in blocks])


def awaits(node: ast.AST) -> bool:
    """Whether this awaits outside of any function: what a module cannot do."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return False
    return isinstance(node, ast.Await | ast.AsyncWith | ast.AsyncFor) or any(
        awaits(child) for child in ast.iter_child_nodes(node)
    )


def program(block: Block) -> str:
    """Return the whole program of a block: what it continues, then itself."""
    if "continues" not in block.notes:
        return block.text
    first = next((node.lineno for node in ast.parse(block.text).body if awaits(node)), None)
    lines = block.text.splitlines(keepends=True)
    declared = "".join(lines if first is None else lines[: first - 1])
    text = f"{program(NAMED[block.notes['continues']])}\n\n{declared}"
    if first is not None:
        body = textwrap.indent("".join(lines[first - 1 :]), " " * 8)
        opening = "    async with jobs, jobs.worker(concurrency=4).lifespan():\n"
        text += f"\nimport asyncio\n\n\nasync def fragment() -> None:\n{opening}{body}\n\nasyncio.run(fragment())\n"
    return text


def environment(dsn: str) -> dict[str, str]:
    """Return what a reader's shell would have, and nothing of this machine's."""
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    shown = {"PYTHONPATH": str(ROOT), "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return {**kept, **shown, "PQRUN_DSN": dsn}


def run(*arguments: str, folder: Path, dsn: str = "", **more: str) -> str:
    """Run a command, which must succeed, and return what it prints."""
    done = subprocess.run(
        arguments,
        cwd=folder,
        env={**environment(dsn), **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(arguments)}:\n{done.stdout}{done.stderr}"
    return done.stdout


def table(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table whose first heading cell is this, without marks of code."""
    lines = (ROOT / page).read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    return rows


def shown(value: object) -> str:
    """Write a default as the tables do."""
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert BLOCKS
    assert not [f"{block.place}: {block.kind or 'no kind'}" for block in BLOCKS if block.kind not in KINDS]


def test_every_note_is_one_that_is_known_and_leads_somewhere() -> None:
    assert {name for block in BLOCKS for name in block.notes} <= {
        "name",
        "continues",
        "request",
        "needs",
        "arguments",
        "from",
        "refused",
        "includes",
    }
    assert len(NAMED) == sum("name" in block.notes for block in BLOCKS), "two blocks have the same name"
    assert {
        block.notes[note] for block in BLOCKS for note in ("continues", "refused") if note in block.notes
    } <= NAMED.keys()


@each(EXCERPTS)
def test_an_excerpt_stands_in_its_example(block: Block) -> None:
    assert f"\n{block.text}" in (ROOT / block.notes["from"]).read_text()


@each(INCLUDED)
def test_what_a_page_includes_is_a_file_of_the_project(block: Block) -> None:
    assert block.text == f'--8<-- "{block.notes["includes"]}"\n'
    assert (ROOT / block.notes["includes"]).is_file()


def test_the_page_of_examples_has_them_all() -> None:
    shown = {block.notes["includes"] for block in INCLUDED if block.page == "docs/examples.md"}
    assert {str(file.relative_to(ROOT)) for file in (ROOT / "examples").glob("*.py")} <= shown


@each(REFUSED)
def test_each_line_with_a_comment_is_refused_by_mypy(block: Block, tmp_path: Path) -> None:
    declared = program(NAMED[block.notes["refused"]])
    body = textwrap.indent(block.text, "    ")
    (tmp_path / "refused.py").write_text(f"{declared}\n\nasync def refused() -> None:\n{body}")
    first = declared.count("\n") + 4  # lines of what stands before, and mypy counts from 1
    said = mypy(["refused.py"], tmp_path).stdout
    refused = {int(number) - first for number in re.findall(r"^refused\.py:(\d+): error", said, re.MULTILINE)}
    expected = {number for number, line in enumerate(block.text.splitlines()) if "  # " in line}
    assert refused == expected, said


@each(PYTHON)
def test_a_python_block_runs(block: Block, dsn: str, tmp_path: Path) -> None:
    text = program(block)
    if "request" in block.notes:
        method, path = block.notes["request"].split()
        text += SERVE.format(method=method, path=path)
    file = tmp_path / f"{block.notes.get('name', 'block')}.py"
    file.write_text(text)
    paths = installed_in(tmp_path / "installed")
    is_test = re.search(r"^(async )?def test_", text, re.MULTILINE)
    runner = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if is_test else ["-W", "error"]
    # The fixtures of pqrun make databases of their own, on the server of this session.
    more = {"PYTHONPATH": paths, "PQRUN_TEST_DSN": dsn} if is_test else {}
    run(sys.executable, *runner, file.name, folder=tmp_path, dsn=dsn, **more)


def test_every_python_block_passes_mypy_strict(tmp_path: Path) -> None:
    places = {}
    for number, block in enumerate(PYTHON):
        file = tmp_path / f"block_{number}.py"
        file.write_text(program(block))
        places[file.name] = block.place
    done = mypy(list(places), tmp_path)
    said = re.sub(r"^block_\d+\.py", lambda match: f"{match[0]} ({places[match[0]]})", done.stdout, flags=re.MULTILINE)
    assert done.returncode == 0, said + done.stderr


def mypy(files: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Check files as a user would: the project's own settings do not count."""
    settings = folder / "mypy.ini"
    settings.write_text("[mypy]\n[mypy-django.*]\nignore_missing_imports = True\n")  # it ships no types
    cache = f"--cache-dir={ROOT / '.mypy_cache' / 'docs'}"
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--config-file={settings}", cache, *files],
        cwd=folder,
        env={**os.environ, "MYPYPATH": os.pathsep.join([str(ROOT / "stubs"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


CRON = """
CREATE SCHEMA IF NOT EXISTS cron;
CREATE OR REPLACE FUNCTION cron.schedule(job_name text, schedule text, command text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF array_length(regexp_split_to_array(schedule, ' '), 1) <> 5 THEN RAISE 'no schedule: %', schedule; END IF;
    EXECUTE command;
    RETURN 1;
END $$;
"""
"""In place of pg_cron, which is not everywhere: its commands are run, once."""


async def run_sql(block: Block, connection: asyncpg.Connection, role_suffix: str) -> None:
    """Run a block of SQL as its notes say."""
    text = re.sub(r"\bshop_(producer|watcher|worker)\b", rf"\g<0>_{role_suffix}", block.text)
    if "needs" in block.notes:
        assert block.notes["needs"] == "pg_cron"
        await connection.execute(CRON)
    if "arguments" in block.notes:
        numbers = itertools.count(1)
        numbered = re.sub(r"\?", lambda _: f"${next(numbers)}", text)
        assert await connection.fetch(numbered, *block.notes["arguments"].split("|"))
    else:
        await connection.execute(text)


@asynccontextmanager
async def roles_dropped(connection: asyncpg.Connection, suffix: str) -> AsyncIterator[None]:
    """Leave no role behind: they belong to the whole server."""
    try:
        yield
    finally:
        made = await connection.fetch("SELECT rolname FROM pg_roles WHERE rolname LIKE '%' || $1", f"_{suffix}")
        for row in made:
            await connection.execute(f"DROP OWNED BY {row['rolname']}; DROP ROLE {row['rolname']}")


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
async def test_the_sql_blocks_of_a_page_run_in_order(page: str, connection: asyncpg.Connection) -> None:
    suffix = f"page{os.getpid()}"
    async with roles_dropped(connection, suffix):
        for block in BLOCKS:
            if block.page == page and block.kind == "sql":
                await run_sql(block, connection, suffix)


@each(BASH)
def test_each_line_of_a_bash_block_is_a_command_that_exists(block: Block, empty_dsn: str, tmp_path: Path) -> None:
    for line in filter(None, map(str.strip, block.text.splitlines())):
        if not line.startswith(PLAIN_COMMANDS):
            check_command(shlex.split(line, comments=True), empty_dsn, tmp_path)


@pytest.mark.parametrize("file", COMMANDED, ids=lambda file: str(file.relative_to(ROOT / "examples")))
def test_each_command_in_the_docstring_of_an_example_exists(file: Path, empty_dsn: str, tmp_path: Path) -> None:
    for line in commands(file):
        check_command(shlex.split(line, comments=True), empty_dsn, tmp_path)


def check_command(words: list[str], dsn: str, folder: Path) -> None:
    """Check one line; what is not known here fails."""
    while words and (setting := re.fullmatch(r"([A-Z_]+)=.*", words[0])):
        assert setting[1] in VARIABLES, words[0]
        words = words[1:]
    match words:
        case ["pip", "install", *requirements]:
            check_requirements(requirements)
        case ["make", *targets]:
            run("make", "-n", *targets, folder=ROOT)
        case ["python", "manage.py", _]:
            assert (DJANGO / "manage.py").exists()
        case ["uvicorn" | "gunicorn", *options]:
            check_target(next(word for word in options if ":" in word), r"^{} = \w+\(")
        case ["flask", "--app", module, "run" | "init-db"]:
            check_target(f"{module}:app", r"^{} = Flask\(")
        case ["python", "-m", module]:
            assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module
        case ["python", file]:
            assert file.removesuffix(".py") in NAMED, f"no block has the name of {file}"
        case ["export", assignment]:
            assert assignment.partition("=")[0] in VARIABLES, assignment
        case ["psql", "$PQRUN_DSN", "-c", statement]:
            check_pqrun("migrate", [], dsn, folder)
            execute(statement, dsn)
        case ["pqrun", command, *rest]:
            check_pqrun(command, rest, dsn, folder)
        case _:
            pytest.fail(f"a line that is not checked: {shlex.join(words)}")


def check_requirements(requirements: list[str]) -> None:
    for requirement in set(requirements) - {"pytest"}:
        found = re.fullmatch(r"pqrun(\[(?P<extras>[\w,]+)\])?", requirement)
        assert found, f"pip install {requirement}"
        assert set((found["extras"] or "dev").split(",")) <= EXTRAS.keys(), requirement


def execute(statement: str, dsn: str) -> None:
    """Run what psql would, without it: it is not on every machine that has Python."""

    async def once() -> None:
        async with connected(dsn) as connection:
            await connection.execute(statement)

    run_coroutine(once())


def check_pqrun(command: str, rest: list[str], dsn: str, folder: Path) -> None:
    """Run what is cheap; of the rest, the help must know each option, and a target must be a block."""
    if command in RUN_COMMANDS:
        run(sys.executable, "-m", "pqrun", command, *rest, folder=folder, dsn=dsn)
        return
    if command in COMMAND_GROUPS:
        command, rest = f"{command} {rest[0]}", rest[1:]
    text = run(sys.executable, "-m", "pqrun", *command.split(), "--help", folder=folder)
    for number, word in enumerate(rest):
        if word.startswith("-"):
            assert re.search(rf"(?<![\w-]){re.escape(word.partition('=')[0])}\b", text), f"pqrun {command} {word}"
        elif command == "jobs" or rest[number - 1] == "--query":
            parse_query(word)
        elif re.fullmatch(r"[\w.]+:\w+", word):
            check_target(word, r"^({} = App\(|from \.\w+ import {}$)")


def check_target(target: str, pattern: str) -> None:
    """Find ``module:name`` in a named block, or in an example, where a line must match the pattern with the name in it."""
    module, _, name = target.partition(":")
    path = f"{module.replace('.', '/')}.py"
    files = [file for folder in (ROOT, DJANGO) if (file := folder / path).exists()]
    written = {"app": APP}  # by pqrun init
    text = NAMED[module].text if module in NAMED else written.get(module) or files[0].read_text()
    assert re.search(pattern.replace("{}", name), text, re.MULTILINE), target


def test_the_table_of_variables_is_what_a_worker_reads() -> None:
    def default(value: object) -> str:
        return shown(value).lower()

    assert table("README.md", "variable") == [
        [variable.name, variable.flag, variable.option, default(variable.default)] for variable in WORKER_VARIABLES
    ]


def test_the_worker_command_has_the_flags_of_the_table(tmp_path: Path) -> None:
    text = run(sys.executable, "-m", "pqrun", "worker", "--help", folder=tmp_path)
    assert not [flag for _, flag, _, _ in table("README.md", "variable") if flag not in text]


def test_the_table_of_task_options_has_their_names_and_defaults() -> None:
    rows = {name: default for name, default, _ in table("README.md", "option")}
    assert rows.keys() == {*DeclaredOptions.__annotations__, *CallOptions.__annotations__}
    options = JobOptions()
    assert rows["queue"] == shown(options.queue)
    assert rows["priority"] == shown(options.priority)
    assert rows["max_attempts"] == shown(options.max_attempts)
    assert rows["timeout"] == shown(options.timeout_seconds)


def test_the_table_of_worker_options_has_their_names_and_defaults() -> None:
    rows = {name: default for name, default, _ in table("docs/worker.md", "option")}
    annotations = get_type_hints(WorkerOptions)
    assert list(rows) == list(annotations)
    for variable in WORKER_VARIABLES:
        assert rows[variable.option] == shown(variable.default)
    for policy in ("backoff", "idle_policy", "loop_error_policy"):
        assert rows[policy] == f"{annotations[policy].__name__}()"
    assert rows["retention"] == f"timedelta(days={RETENTION_DEFAULT.days})"
    assert rows["ack"] == shown(get_args(annotations["ack"])[0])


def test_every_link_within_the_project_leads_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if "://" in target:
                continue
            file, _, anchor = target.partition("#")
            path = (page.parent / file).resolve() if file else page
            if not path.exists() or (anchor and anchor not in anchors(path)):
                broken.append(f"{page.name}: {target}")
    assert not broken


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_table_of_clock_changes_is_what_the_rules_say() -> None:
    assert table("docs/schedules.md", "zone") == [[cell.replace("`", "") for cell in row] for row in clock_changes()]


def test_the_table_of_schedule_options_has_their_names_and_defaults() -> None:
    rows = {name: default for name, default, _ in table("docs/schedules.md", "option")}
    assert list(rows) == ["cron", "every", "tz", "catch_up", "overlap", "jitter"]
    assert rows.keys() == ScheduleOptions.__annotations__.keys()
    bare = ScheduleDefinition(name="s", job=NewJob(job_type="t", payload="{}"), rule=check_rule(cron="* * * * *"))
    assert (rows["catch_up"], rows["overlap"], rows["jitter"]) == (
        shown(bare.catch_up),
        shown(bare.overlap),
        "timedelta(0)",
    )
    assert bare.rule == check_rule(cron="* * * * *", tz=rows["tz"].strip('"'))
    assert bare.jitter == timedelta(0)
