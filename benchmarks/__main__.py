"""``python -m benchmarks NAME …``: lists the measurements there are, and runs one; only that one is imported."""

import importlib
from typing import NamedTuple

import typer

__all__ = ["MEASUREMENTS", "app", "run"]


class Measurement(NamedTuple):
    """Where a measurement is: a module with a function ``main``, whose parameters are the command's options."""

    module: str
    summary: str


MEASUREMENTS = {
    "chaos": Measurement(
        "benchmarks.chaos.command", "Hurt workers and databases under load; prove that nothing is lost."
    ),
    "drain": Measurement(
        "benchmarks.drain", "No-op jobs per second, one and two worker processes, beside a lean worker."
    ),
    "history": Measurement(
        "benchmarks.history", "A drain beside millions of finished and scheduled jobs, and in an empty table."
    ),
    "imports": Measurement("benchmarks.imports", "Time of import pqrun, beside that of what it rests on."),
    "latency": Measurement("benchmarks.latency", "Time from a defer to the start of its handler, idle and under load."),
    "limits": Measurement("benchmarks.limits", "What PostgreSQL and Python carry without a queue between them."),
    "memory": Measurement("benchmarks.memory", "Memory of a worker process, and its growth over a million jobs."),
    "mixed": Measurement(
        "benchmarks.mixed", "Failing and slow jobs in queues and priorities, and what they hold back."
    ),
    "model": Measurement(
        "benchmarks.model_check", "Predict the rate of a worker far from its database, and measure it."
    ),
    "options": Measurement("benchmarks.options", "What options cost that are set and do nothing."),
    "pages": Measurement("benchmarks.pages", "Time of each web page beside ten million jobs."),
    "plots": Measurement("benchmarks.plots", "Draw the results as SVG."),
    "producers": Measurement(
        "benchmarks.producers", "Defers per second, single and many, beside raw inserts and COPY."
    ),
    "profiles": Measurement(
        "benchmarks.profiles", "Where the time of a drain goes: stacks, waits, plans; docs/profiles.md."
    ),
    "recovery": Measurement(
        "benchmarks.recovery", "Time from the SIGKILL of a worker to the start of its job elsewhere."
    ),
    "report": Measurement("benchmarks.report", "Write the results page from the results, with the rivals' figures."),
    "scaling": Measurement("benchmarks.scaling", "One to eight worker processes, and eight producers beside them."),
    "schedules": Measurement(
        "benchmarks.schedules", "A schedule every second while workers are killed: firings doubled and missed."
    ),
    "server": Measurement(
        "benchmarks.server", "WAL, commits and dead tuples per thousand jobs; the table's size over a million."
    ),
    "snapshot": Measurement(
        "benchmarks.snapshot", "Half a million jobs while a snapshot is held open: the last beside the first."
    ),
}

app = typer.Typer(help="Measurements of pqrun.", no_args_is_help=True, add_completion=False)


def run(name: str, arguments: list[str], program: str) -> None:
    """Import a measurement and run it; ``--help`` among the arguments is its own."""
    measurement = typer.Typer(add_completion=False)
    measurement.command(name)(importlib.import_module(MEASUREMENTS[name].module).main)
    typer.main.get_command(measurement)(args=arguments, prog_name=program)


def _forward(context: typer.Context) -> None:
    run(str(context.info_name), context.args, context.command_path)


@app.callback()
def _measurements() -> None:
    """Keep the names even where there is one only."""


for _name, _measurement in MEASUREMENTS.items():
    app.command(
        _name,
        help=_measurement.summary,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(_forward)

if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
