"""The values that travel between the rooms: a job to insert, a job as it is stored, a claim on one.

None of them shows a payload or a result in its ``repr``: those may hold what must not reach a log.
"""

from datetime import datetime
from typing import TypeAlias

import msgspec
from pydantic import JsonValue

from pqrun.job.state import Status

__all__ = ["Claim", "Enqueued", "Job", "JsonObject", "JsonValue", "NewJob"]

JsonObject: TypeAlias = dict[str, JsonValue]
"""A JSON object: what payloads and results are at rest. ``JsonValue`` is pydantic's: what JSON can hold, as Python values."""


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
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

    def __repr__(self) -> str:
        return f"NewJob(job_type={self.job_type!r}, queue={self.queue!r})"


class Enqueued(msgspec.Struct, frozen=True):
    """What an insert came to: the id, and whether this very call created the row."""

    id: int
    created: bool


class Claim(msgspec.Struct, frozen=True):
    """One claim on one job: every write about a claimed job matches both numbers."""

    job_id: int
    claim_id: int


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the relation ``jobs`` as it was when it was read."""

    id: int
    queue: str
    job_type: str
    payload_json: str
    """The payload as JSON text; ``payload`` decodes it."""
    status: Status
    priority: int
    attempts: int
    """Starts that count; goes up at the claim, down again when a claim is given back."""
    max_attempts: int
    run_after: datetime
    timeout_seconds: float | None = None
    locked_at: datetime | None = None
    locked_by: str | None = None
    claim_id: int | None = None
    dedupe_key: str | None = None
    last_error: str | None = None
    finished_at: datetime | None = None
    duration_ms: int | None = None
    result_json: str | None = None
    """The result as JSON text; ``result`` decodes it."""
    created_at: datetime
    updated_at: datetime
    cancel_requested_at: datetime | None = None
    lost: int = 0
    """How many workers this job has lost: each died, or was taken for dead, while it ran."""
    backoff_seconds: tuple[float, ...] | None = None
    """Delays of its own between attempts (given per call), in seconds; the last one repeats."""
    releases: int = 0
    """How many times a started run was given back at a shutdown."""

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

    def __repr__(self) -> str:
        return (
            f"Job(id={self.id}, job_type={self.job_type!r}, queue={self.queue!r}, status={self.status.value!r}, "
            f"attempts={self.attempts}/{self.max_attempts})"
        )
