"""The values that travel between the rooms: a job to insert, a job as it is stored, a claim on one.

None of them shows a payload or a result in its ``repr``: those may hold what must not reach a log.
"""

from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

import msgspec
from pydantic import JsonValue

from pqrun.job.state import Status
from pqrun.job.storable import error_summary

__all__ = ["Claim", "Enqueued", "Job", "JsonObject", "JsonValue", "NewJob"]

JsonObject: TypeAlias = dict[str, JsonValue]
"""A JSON object: what payloads and results are at rest. ``JsonValue`` is pydantic's: what JSON can hold, as Python values."""


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A validated job on its way into the database; every field has passed ``pqrun.job.options``."""

    job_type: str
    payload: str
    """JSON text of an object."""
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 5
    timeout_seconds: float | None = None
    dedupe_key: str | None = None
    """As stored: ``pqrun.job.dedupe.stored_key`` has bounded its length."""
    run_after: datetime | None = None
    """Aware; None means now, by the database's clock."""
    delay_seconds: float | None = None
    """Instead of ``run_after``: this long after now, by the database's clock."""
    backoff_seconds: tuple[float, ...] | None = None
    """Delays before the second, third … start, the last one repeating; None: the policy of the task or worker."""
    payload_version: int = 1
    """The version of the task that the payload was written for."""
    headers: str | None = None
    """JSON text of an object of texts; None: none."""

    def __repr__(self) -> str:
        return f"NewJob(job_type={self.job_type!r}, queue={self.queue!r})"


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """What an insert came to: the id, and whether this very call created the row."""

    id: int
    created: bool


class Claim(msgspec.Struct, frozen=True, gc=False):
    """One claim on one job: every write about a claimed job matches both numbers."""

    job_id: int
    claim_id: int


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _as_datetime(moment: datetime | float) -> datetime:
    return moment if isinstance(moment, datetime) else _EPOCH + timedelta(microseconds=round(moment * 1e6))


class Job(msgspec.Struct, frozen=True, gc=False):
    """A row of the relation ``jobs`` as it was when it was read; pqrun makes these.

    The times of a claim are kept as they came, in seconds of the epoch, and become datetimes when they are looked at.
    """

    id: int
    claim_id: int | None
    queue: str
    job_type: str
    payload_json: str
    """The payload as JSON text; ``payload`` decodes it."""
    priority: int
    attempts: int
    """Starts that count; goes up at the claim, down again when a claim is given back."""
    max_attempts: int
    _run_after: datetime | float
    timeout_seconds: float | None
    _locked_at: datetime | float | None
    dedupe_key: str | None
    last_error: str | None
    _created_at: datetime | float
    lost: int
    """How many workers this job has lost: each died, or was taken for dead, while it ran."""
    releases: int
    """How many times a started run was given back at a shutdown."""
    snoozes: int
    """How many times its handler has put it off by ``Snooze``."""
    backoff_seconds: tuple[float, ...] | None
    """Delays of its own between attempts (given per call), in seconds; the last one repeats."""
    payload_version: int
    """The version of the task that the payload was written for; 1 unless the task states another."""
    _scheduled_for: datetime | float | None
    headers_json: str | None
    """What travels beside the payload, as JSON text; ``headers`` decodes it."""
    status: Status
    locked_by: str | None
    _updated_at: datetime | float
    finished_at: datetime | None = None
    duration_ms: int | None = None
    result_json: str | None = None
    """The result as JSON text; ``result`` decodes it."""
    cancel_requested_at: datetime | None = None

    @property
    def run_after(self) -> datetime:
        """When it is, or was, due; aware."""
        return _as_datetime(self._run_after)

    @property
    def locked_at(self) -> datetime | None:
        """When it was claimed; None while nobody runs it."""
        return None if self._locked_at is None else _as_datetime(self._locked_at)

    @property
    def created_at(self) -> datetime:
        """When it was deferred."""
        return _as_datetime(self._created_at)

    @property
    def scheduled_for(self) -> datetime | None:
        """The planned time of the firing of a schedule that made this job; None for all other jobs."""
        return None if self._scheduled_for is None else _as_datetime(self._scheduled_for)

    @property
    def updated_at(self) -> datetime:
        """When the row was last written."""
        return _as_datetime(self._updated_at)

    @property
    def headers(self) -> dict[str, str]:
        """What travels beside the payload, such as the trace that it was deferred in, decoded anew on each access; empty without."""
        if self.headers_json is None:
            return {}
        headers: dict[str, object] = msgspec.json.decode(self.headers_json)
        return {
            name: text for name, text in headers.items() if isinstance(text, str)
        }  # written by hand it may hold anything

    @property
    def waited_seconds(self) -> float | None:
        """How long it had been due when it was claimed, by the database's clock.

        None where nobody has claimed it, and where a worker that died or stopped had started it before: it has not waited since it was due.
        """
        locked = self._locked_at
        if locked is None or self.lost or self.releases:
            return None
        due, made = self._run_after, self._created_at
        if (
            isinstance(locked, float) and isinstance(due, float) and isinstance(made, float)
        ):  # a claim: asked for each of them
            return max(locked - max(due, made), 0.0)
        waited = _as_datetime(locked) - max(_as_datetime(due), _as_datetime(made))
        return max(waited.total_seconds(), 0.0)

    @property
    def payload(self) -> JsonObject:
        """The payload decoded anew on each access (a dict of your own to change)."""
        payload: JsonObject = msgspec.json.decode(self.payload_json)  # an object: a CHECK of the table says so
        return payload

    @property
    def result(self) -> JsonObject | None:
        """The stored result decoded anew on each access; None before the end and for handlers that return None."""
        if self.result_json is None:
            return None
        result: JsonObject = msgspec.json.decode(self.result_json)
        return result

    @property
    def error_summary(self) -> str | None:
        """The one line of ``last_error`` that names the exception and its message; None before the first error."""
        return None if self.last_error is None else error_summary(self.last_error)

    def __repr__(self) -> str:
        return (
            f"Job(id={self.id}, job_type={self.job_type!r}, queue={self.queue!r}, status={self.status.value!r}, "
            f"attempts={self.attempts}/{self.max_attempts})"
        )
