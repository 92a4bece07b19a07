"""The options by which commands name jobs, and the ``JobFilter`` that they mean. Reads text; touches no database."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, NamedTuple, NoReturn, TypeAlias

import typer

from pqrun.job.filter import JobFilter
from pqrun.job.moments import TIME_EXPECTED, time_ago
from pqrun.job.query import parse_query
from pqrun.job.record import JsonValue
from pqrun.job.state import Status
from pqrun.job.storable import one_line

__all__ = [
    "AllOption",
    "Before",
    "Conditions",
    "Error",
    "Ids",
    "Limit",
    "Payload",
    "Query",
    "Queue",
    "Since",
    "State",
    "Type",
    "jobs_meant",
]

Ids: TypeAlias = Annotated[
    list[int] | None, typer.Argument(metavar="ID", show_default=False, help="Jobs by their ids.")
]
State: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help="In this state; may be given several times, as the next two."),
]
Type: TypeAlias = Annotated[list[str] | None, typer.Option("--type", metavar="NAME", help="Of this task.")]
Queue: TypeAlias = Annotated[list[str] | None, typer.Option("--queue", metavar="NAME", help="In this queue.")]
Error: TypeAlias = Annotated[
    str | None, typer.Option("--error", metavar="TEXT", help="Whose last error contains this, in upper or lower case.")
]
Since: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Deferred (retry, delete: ended) since then: 90s, 15m, 2h, 7d ago, or 2026-01-31T12:00Z.",
    ),
]
Before: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--before", metavar="TIME", help="Deferred (retry, delete: ended) before then; written as for --since."
    ),
]
Payload: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--payload",
        metavar="KEY=VALUE",
        help="Whose payload has this; the value is JSON, or else text; may be given several times.",
    ),
]
Query: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--query",
        metavar="QUERY",
        help="Conditions in one text, as for pqrun jobs: 'state:failed task:send_*'; beside no other condition.",
    ),
]
AllOption: TypeAlias = Annotated[
    bool, typer.Option("--all", help="All of them: what a command without ids and conditions would mean.")
]
Limit: TypeAlias = Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="So many at most.")]


class Conditions(NamedTuple):
    """What was given on the command line."""

    ids: Sequence[int] | None
    states: Sequence[str] | None
    types: Sequence[str] | None
    queues: Sequence[str] | None
    error: str | None
    since: str | None
    before: str | None
    payload: Sequence[str] | None
    is_all: bool
    query: str | None = None

    @property
    def has_options(self) -> bool:
        """Whether jobs are named by options that say what they are."""
        return any(value for value in self[1:-1])


def jobs_meant(conditions: Conditions, *, by_end: bool) -> JobFilter | list[int]:
    """Return what these conditions mean. ``by_end``: times are those of jobs' ends, else of their making.

    Raises typer.BadParameter for what cannot be read, for several ways to name jobs at once, and for none;
    OptionError from the filter and the query.
    """
    ways = bool(conditions.ids), conditions.has_options, conditions.query is not None
    if sum(ways) > 1:
        raise typer.BadParameter("give ids of jobs, or conditions, or a --query, not more than one of these")
    if conditions.ids:
        return list(conditions.ids)
    if conditions.query is not None and conditions.query.strip():
        return parse_query(conditions.query, by_end=by_end)
    if not conditions.has_options:
        raise typer.BadParameter(
            "which jobs? give their ids, or conditions such as --state and --queue, or a --query; --all means all"
        )
    since, before = _time("--since", conditions.since), _time("--before", conditions.before)
    return JobFilter(
        statuses=None if not conditions.states else [_status(state) for state in conditions.states],
        job_types=conditions.types or None,
        queues=conditions.queues or None,
        error_contains=conditions.error,
        payload=_payload(conditions.payload) if conditions.payload else None,
        created_after=None if by_end else since,
        created_before=None if by_end else before,
        finished_after=since if by_end else None,
        finished_before=before if by_end else None,
    )


def _status(text: str) -> Status:
    try:
        return Status(text.upper())
    except ValueError:
        _refuse("--state", f"one of {', '.join(status.value.lower() for status in Status)}", text)


def _time(option: str, text: str | None) -> datetime | timedelta | None:
    if text is None:
        return None
    moment = time_ago(text)
    if moment is None:
        _refuse(option, TIME_EXPECTED, text)
    return moment


def _payload(pairs: Sequence[str]) -> dict[str, JsonValue]:
    payload: dict[str, JsonValue] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not (key and equals):
            raise typer.BadParameter("--payload: expected KEY=VALUE, such as user_id=7")  # what came may be secret
        try:
            value: JsonValue = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        payload[key] = value
    return payload


def _refuse(option: str, expected: str, came: str) -> NoReturn:
    raise typer.BadParameter(f"{option}: expected {expected}; got {one_line(came)!r}")
