"""The query language of the command line and the pages: ``state:failed task:send_* since:1h`` as a ``JobFilter``, and back.

A query is conditions with spaces between them, all of which must hold: ``key:value``, or ``key:value,value`` where one of several values is
enough. What holds a space, a comma or a quote stands in quotes, as a JSON string. Words without a key are ids where all of them are
numbers, and else, together, a part of the error. Errors are QueryErrors: they tell where, what was expected, and the nearest key. They show
no value of a payload and none of an error.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pqrun.errors import OptionError
from pqrun.job.filter import TIMES, JobFilter
from pqrun.job.moments import TIME_EXPECTED, time_ago, time_text
from pqrun.job.query_text import Key, QueryText, Word, decoded, key_part, quoted
from pqrun.job.record import JsonValue
from pqrun.job.state import FINISHED, Status

__all__ = ["KEYS", "parse_query", "query_text"]

KEYS: Final[Mapping[str, str]] = {
    "state": "state:failed,cancelled",
    "task": "task:send_*",
    "queue": "queue:mail",
    "id": "id:7,8",
    "priority": "priority:5",
    "dedupe": "dedupe:user-7",
    "worker": "worker:web-1:4711",
    "attempts": "attempts:>2",
    "error": 'error:"no such card"',
    "payload": "payload.user_id:42",
    "since": "since:1h",
    "before": "before:2026-11-30",
    **{name: f"{name}:{ago}" for name, ago in zip(TIMES, ("2h", "7d", "2h", "7d", "0s", "0s"), strict=True)},
}
"""Each key and an example of it."""

# Names that are used elsewhere for the same.
_OTHER_NAMES: Final = {
    "status": "state",
    "type": "task",
    "job_type": "task",
    "name": "task",
    "ids": "id",
    "key": "dedupe",
    "dedupe_key": "dedupe",
    "locked_by": "worker",
    "last_error": "error",
    "after": "since",
    "until": "before",
    "attempt": "attempts",
}
_SECRET: Final = ("payload", "error")
_NUMBER: Final = re.compile(r"\d{1,19}", re.ASCII)
_WHOLE: Final = re.compile(r"-?\d{1,19}", re.ASCII)
_COUNT: Final = re.compile(r"(>=|<=|>|<)?(\d{1,10})|(\d{1,10})\.\.(\d{1,10})", re.ASCII)
# What stands bare in a list, and is not mistaken for anything else.
_PLAIN: Final = re.compile(r'[^\s,"*]+')


def parse_query(text: str, *, by_end: bool | None = None) -> JobFilter:
    """Return the filter that a query means; the empty query means all jobs.

    ``by_end`` says what ``since`` and ``before`` are times of: True the end of jobs, False their deferring. By itself (None) the end where
    the query names only states of finished jobs, else the deferring. Raises QueryError.
    """
    return _Parser(text).filter(by_end)


class _Parser:
    """Collects the fields of the filter, and where in the query each of them is."""

    def __init__(self, text: str) -> None:
        self._text = QueryText(text)
        self._fields: dict[str, Any] = {}
        self._payload: dict[str, JsonValue] = {}
        self._places: dict[str, int] = {}
        self._words: list[Word] = []
        self._readers: Mapping[str, Callable[[Key], None]] = {
            "state": self._state,
            "task": self._task,
            "queue": lambda key: self._names(key, "queues"),
            "id": lambda key: self._numbers(key, "ids"),
            "priority": lambda key: self._numbers(key, "priorities"),
            "dedupe": lambda key: self._names(key, "dedupe_keys"),
            "worker": lambda key: self._names(key, "workers"),
            "attempts": self._attempts,
            "error": lambda key: self._keep("error_contains", self._text.one(key).text, key.at),
            "payload": self._part_of_payload,
        }

    def filter(self, by_end: bool | None) -> JobFilter:
        """Read all of it."""
        seen: set[str] = set()
        while not self._text.is_at_end():
            key = self._text.key()
            if key is None:
                self._words.append(self._text.word())
                continue
            self._check_key(key)
            if key.text in seen:
                raise self._text.error(
                    f"{key.text}: is given twice; several values stand behind one key, with commas between", key.at
                )
            seen.add(key.text)
            self._readers.get(key.name, self._time)(key)
        self._take_words()
        self._take_times(by_end)
        if self._payload:
            self._fields["payload"] = self._payload
        return self._made()

    def _made(self) -> JobFilter:
        try:
            return JobFilter(**self._fields)
        except OptionError as error:
            field, _, reason = str(error).partition(": ")
        place = self._places.get(field, 0)
        raise self._text.error(f"{_KEYS_OF.get(field, field)}: {reason}", place)

    def _check_key(self, key: Key) -> None:
        if key.name in KEYS and bool(key.path) == (key.name == "payload"):
            return
        if key.name == "payload":
            raise self._text.error("payload: which field? write payload.user_id:42", key.at)
        near = _OTHER_NAMES.get(key.text) or next(iter(difflib.get_close_matches(key.name, KEYS, n=1)), None)
        if near is None:
            known = ", ".join(KEYS)
            raise self._text.error(
                f"{key.text}: no such key; there are {known}. Text with a colon stands in quotes", key.at
            )
        value = "" if near in _SECRET or key.path else self._text.word().text
        raise self._text.error(f"{key.text}:{value}: no such key; did you mean {near}:?", key.at)

    def _keep(self, field: str, value: object, at: int) -> None:
        self._fields[field] = value
        self._places[field] = at

    def _state(self, key: Key) -> None:
        self._keep("statuses", [self._status(value) for value in self._text.several(key)], key.at)

    def _status(self, value: Word) -> Status:
        known = [status.value.lower() for status in Status]
        if value.text.lower() in known:
            return Status(value.text.upper())
        near = difflib.get_close_matches(value.text.lower(), known, n=1)
        meant = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
        raise self._text.error(f"state:{value.text}: no such state; {meant}", value.at)

    def _task(self, key: Key) -> None:
        values = self._text.several(key)
        exact = [value.text for value in values if not value.is_pattern]
        patterns = [value.text for value in values if value.is_pattern]
        if exact:
            self._keep("job_types", exact, key.at)
        if patterns:
            self._keep("job_type_patterns", patterns, key.at)

    def _names(self, key: Key, field: str) -> None:
        values = self._text.several(key)
        for value in values:
            if value.is_pattern:
                raise self._text.error(
                    f"{key.name}: * stands for any text in task: alone; in quotes it is itself", value.at
                )
        self._keep(field, [value.text for value in values], key.at)

    def _numbers(self, key: Key, field: str) -> None:
        values = self._text.several(key)
        for value in values:
            if not _WHOLE.fullmatch(value.text):
                raise self._text.error(f"{key.name}: expected a whole number", value.at)
        self._keep(field, [int(value.text) for value in values], key.at)

    def _attempts(self, key: Key) -> None:
        found = _COUNT.fullmatch(self._text.one(key).text)
        if found is None:
            raise self._text.error("attempts: expected a number such as 3, >2, >=2, <5, <=5 or 2..4", key.at)
        sign, number, first, last = found.groups()
        least, most = (first, last) if number is None else (number, number)
        if sign not in ("<", "<="):
            self._keep("attempts_min", int(least) + (sign == ">"), key.at)
        if sign not in (">", ">="):
            self._keep("attempts_max", int(most) - (sign == "<"), key.at)

    def _part_of_payload(self, key: Key) -> None:
        value = self._text.json(key)
        self._places.setdefault("payload", key.at)
        inside = self._payload
        for part in key.path[:-1]:
            deeper = inside.setdefault(part, {})
            if not isinstance(deeper, dict):
                raise self._text.error(f"{key.text}: another condition gives a value to a part of this path", key.at)
            inside = deeper
        if key.path[-1] in inside:
            raise self._text.error(f"{key.text}: another condition speaks of the same value", key.at)
        inside[key.path[-1]] = value

    def _time(self, key: Key) -> None:
        value = self._text.one(key)
        moment = time_ago(value.text)
        if moment is None:
            raise self._text.error(f"{key.name}: expected {TIME_EXPECTED}", value.at)
        self._keep(key.name, moment, key.at)

    def _take_times(self, by_end: bool | None) -> None:
        statuses = self._fields.get("statuses")
        if by_end is None:
            by_end = statuses is not None and FINISHED.issuperset(statuses)
        for short, edge in (("since", "after"), ("before", "before")):
            if short not in self._fields:
                continue
            field = f"{'finished' if by_end else 'created'}_{edge}"
            if field in self._fields:
                raise self._text.error(f"{short}: means {field}: here, which is given too", self._places[short])
            self._keep(field, self._fields.pop(short), self._places[short])

    def _take_words(self) -> None:
        if not self._words:
            return
        first = self._words[0]
        if all(_NUMBER.fullmatch(word.text) and not word.is_quoted for word in self._words):
            self._places.setdefault("ids", first.at)
            self._fields["ids"] = [*self._fields.get("ids", ()), *(int(word.text) for word in self._words)]
            return
        if "error_contains" in self._fields:
            raise self._text.error("words without a key are a part of the error, and error: is given too", first.at)
        if len(self._words) == 1 and not first.is_quoted and first.text.upper() in Status.__members__:
            raise self._text.error(
                f"{first.text}: did you mean state:{first.text.lower()}? In quotes it is a part of the error", first.at
            )
        self._keep("error_contains", " ".join(word.text for word in self._words), first.at)


_KEYS_OF: Final = {
    "statuses": "state",
    "job_types": "task",
    "job_type_patterns": "task",
    "queues": "queue",
    "ids": "id",
    "priorities": "priority",
    "dedupe_keys": "dedupe",
    "workers": "worker",
    "attempts_min": "attempts",
    "attempts_max": "attempts",
    "error_contains": "error",
}


def query_text(wanted: JobFilter) -> str:
    """Return a query that means this filter, whatever ``by_end`` it is read with; empty for all jobs."""
    conditions: list[str] = []
    if wanted.statuses is not None:
        conditions.append(f"state:{','.join(status.value.lower() for status in wanted.statuses)}")
    tasks = [*map(_written, wanted.job_types or ()), *(_pattern(one) for one in wanted.job_type_patterns or ())]
    if tasks:
        conditions.append(f"task:{','.join(tasks)}")
    for key, names in (("queue", wanted.queues), ("dedupe", wanted.dedupe_keys), ("worker", wanted.workers)):
        if names is not None:
            conditions.append(f"{key}:{','.join(map(_written, names))}")
    for key, numbers in (("id", wanted.ids), ("priority", wanted.priorities)):
        if numbers is not None:
            conditions.append(f"{key}:{','.join(map(str, numbers))}")
    conditions += _attempts_text(wanted.attempts_min, wanted.attempts_max)
    if wanted.error_contains is not None:
        conditions.append(f"error:{quoted(wanted.error_contains)}")
    if wanted.payload_json is not None:
        conditions += _payload_text(("payload",), json.loads(wanted.payload_json))
    times = ((name, getattr(wanted, name)) for name in TIMES)
    conditions += [f"{name}:{time_text(moment)}" for name, moment in times if moment is not None]
    return " ".join(conditions)


def _written(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quoted(name)


def _pattern(name: str) -> str:
    """Pieces that cannot stand bare in quotes, each ``*`` outside of them."""
    return "*".join(piece and _written(piece) for piece in name.split("*"))


def _attempts_text(least: int | None, most: int | None) -> Sequence[str]:
    if least is None:
        return [] if most is None else [f"attempts:<={most}"]
    if most is None:
        return [f"attempts:>={least}"]
    return [f"attempts:{least}" if least == most else f"attempts:{least}..{most}"]


def _payload_text(path: tuple[str, ...], value: JsonValue) -> list[str]:
    if isinstance(value, dict) and value:
        return [one for key, inner in value.items() for one in _payload_text((*path, key_part(key)), inner)]
    text = json.dumps(value, ensure_ascii=False)
    bare = isinstance(value, str) and _PLAIN.fullmatch(value) and value[0] not in "{[" and decoded(value) == value
    return [f"{'.'.join(path)}:{value if bare else text}"]
