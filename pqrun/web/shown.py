"""What of a job may be shown to a visitor: payload, result and errors, through the redaction of the application."""

import json
import logging
from typing import Any, NamedTuple

import msgspec

from pqrun.job.record import Job, JsonValue
from pqrun.web.site import Part
from pqrun.web.visit import Visit

__all__ = ["Shown", "error_kind", "show", "show_error", "shown_job"]

_LOGGER = logging.getLogger("pqrun")

SHOWN_CHARACTERS = 100_000
"""Of one payload or result on a page; the rest is in the JSON twin of the page."""


class Shown(NamedTuple):
    """A part of a job as it may be shown."""

    text: str | None
    """None: there is nothing, or it is hidden."""
    is_hidden: bool = False
    is_masked: bool = False
    """Whether redaction changed it."""
    left_out: int = 0
    """Characters that did not fit."""
    value: JsonValue = None


def show(visit: Visit, job_type: str, part: Part, text: str | None, *, whole: bool = False) -> Shown:
    """Return a JSON object, indented, as far as this visitor may see it."""
    if text is None:
        return Shown(None)
    if not visit.sees_payloads:
        return Shown(None, is_hidden=True)
    value: JsonValue = msgspec.json.decode(text)
    shown, is_hidden = _redacted(visit, job_type, part, value)
    if is_hidden:
        return Shown(None, is_hidden=True)
    # Not msgspec's own: numbers of any length must stay as they are.
    written = json.dumps(shown, indent=2, ensure_ascii=False)
    cut = written if whole else written[:SHOWN_CHARACTERS]
    return Shown(cut, False, shown != value, len(written) - len(cut), shown)


def show_error(visit: Visit, job_type: str, text: str | None) -> Shown:
    """Return the text of an error, or a line of it; of one that is hidden the kind stays."""
    if text is None:
        return Shown(None)
    if not visit.sees_payloads:
        return Shown(error_kind(text), is_hidden=True)
    shown, is_hidden = _redacted(visit, job_type, "error", text)
    if is_hidden or not isinstance(shown, str):
        return Shown(error_kind(text), is_hidden=True)
    return Shown(shown, False, shown != text)


def error_kind(text: str) -> str:
    """Return the name of the exception alone, of its line: messages may quote a payload."""
    name = text.partition(":")[0].strip()
    return name if name.replace(".", "").replace("_", "").isalnum() and len(name) <= 200 else "an error"


def _redacted(visit: Visit, job_type: str, part: Part, value: JsonValue) -> tuple[JsonValue, bool]:
    redact = visit.site.rules.redact
    if redact is None:
        return value, False
    copied: Any = msgspec.json.decode(msgspec.json.encode(value))
    try:
        return redact(job_type, part, copied), False
    except Exception as error:  # noqa: BLE001  # the border to user code: what it fails on is not shown
        _LOGGER.warning("pages: redact= raised %s for the %s of %s; it is hidden", type(error).__name__, part, job_type)
        return None, True


def shown_job(visit: Visit, job: Job) -> dict[str, object]:
    """Return a job for the JSON twin of a page."""
    payload = show(visit, job.job_type, "payload", job.payload_json, whole=True)
    result = show(visit, job.job_type, "result", job.result_json, whole=True)
    columns = {
        name.lstrip("_"): getattr(job, name.lstrip("_"))
        for name in job.__struct_fields__
        if name not in ("payload_json", "result_json", "last_error")
    }
    if not visit.sees_payloads:
        columns["dedupe_key"] = columns["headers_json"] = (
            None  # the one is made of fields of the payload, the other may be
        )
    error = show_error(visit, job.job_type, job.last_error if visit.sees_payloads else job.error_summary)
    return {**columns, "payload": payload.value, "result": result.value, "last_error": error.text}
