"""Logs as JSON, one object per line, for collectors that read fields: ``pqrun worker --log-format json``, or a formatter of your own.

::

    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.getLogger("pqrun").addHandler(handler)

Every object has ``time`` (UTC), ``level``, ``logger`` and ``message``. A line about an event of a worker has its ``event`` and fields, one
of a job ``job_id``, ``job_type``, ``queue``, ``attempt`` and ``max_attempts``; what a handler logs through ``ctx.logger`` has them too, and
what it gives as ``extra=``, where that is text, a number, true, false or null. There are no payloads and no results.
"""

import json
import logging
import math
from datetime import UTC, datetime
from typing import Final

import msgspec

from pqrun.job.record import Job

__all__ = ["JsonFormatter"]

_STANDARD: Final = frozenset(
    {*logging.LogRecord("", 0, "", 0, "", None, None).__dict__, "message", "asctime", "taskName", "pqrun_event"}
)
"""What every record has, and what is told in another form."""

_OWN: Final = frozenset({"time", "level", "logger", "exception", "event"})


class JsonFormatter(logging.Formatter):
    """One JSON object per record, in ASCII and on one line; see the module's docstring."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as text."""
        moment = datetime.fromtimestamp(record.created, UTC)
        told: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        event = getattr(record, "pqrun_event", None)
        if isinstance(event, msgspec.Struct):
            told |= _event_fields(event)
        for name, value in record.__dict__.items():
            if name not in _STANDARD and name not in _OWN and _is_scalar(value):
                told[name] = _finite(value)
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            told["exception"] = record.exc_text
        return json.dumps(told)


def _event_fields(event: msgspec.Struct) -> dict[str, object]:
    fields: dict[str, object] = {"event": type(event).__name__}
    for name, value in msgspec.structs.asdict(event).items():
        if isinstance(value, Job):
            fields |= {
                "job_id": value.id,
                "job_type": value.job_type,
                "queue": value.queue,
                "attempt": value.attempts,
                "max_attempts": value.max_attempts,
            }
        elif isinstance(value, tuple):
            fields[name] = [one.id if isinstance(one, Job) else str(one) for one in value]
        elif isinstance(value, datetime):
            fields[name] = value.isoformat()
        elif _is_scalar(value):
            fields[name] = _finite(value)
    return fields


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _finite(value: object) -> object:
    """JSON knows no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
