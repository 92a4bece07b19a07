"""The values of a schedule: what code or an operator defines, and the row as it is stored."""

from datetime import datetime, timedelta
from typing import Literal, TypeAlias

import msgspec

from pqrun.job.record import JsonObject, NewJob
from pqrun.job.schedule import CatchUp, CronRule, EveryRule, Overlap, Rule, preview, words

__all__ = ["Schedule", "ScheduleDefinition", "ScheduleState"]

ScheduleState: TypeAlias = Literal["active", "paused", "orphaned"]


class ScheduleDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run and when; every field was checked."""

    name: str
    job: NewJob
    """What each firing inserts; its due time comes from the rule."""
    rule: Rule
    catch_up: CatchUp = "one"
    overlap: Overlap = "allow"
    jitter: timedelta = timedelta(0)
    is_paused: bool = False
    """Whether it begins paused; no part of what is compared with the last code seen."""

    @property
    def text(self) -> str:
        """All of it but the name as JSON, the same for equal definitions: by it a deploy is known to change something, or nothing."""
        job = self.job
        cron, tz, every = split_rule(self.rule)
        fields: dict[str, object] = {
            "job_type": job.job_type,
            "payload": msgspec.json.decode(job.payload),
            "payload_version": job.payload_version,
            "queue": job.queue,
            "priority": job.priority,
            "max_attempts": job.max_attempts,
            "timeout": job.timeout_seconds,
            "dedupe_key": job.dedupe_key,
            "backoff": job.backoff_seconds,
            "cron": cron,
            "tz": tz,
            "every": every,
            "catch_up": self.catch_up,
            "overlap": self.overlap,
            "jitter": self.jitter.total_seconds(),
        }
        return msgspec.json.encode(fields, order="deterministic").decode()


def split_rule(rule: Rule) -> tuple[str | None, str | None, float | None]:
    """Return a rule as its columns: the expression, its zone, and seconds."""
    if isinstance(rule, CronRule):
        return rule.expression, rule.tz, None
    return None, None, rule.every.total_seconds()


def join_rule(cron: str | None, tz: str | None, every_seconds: float | None) -> Rule:
    """Return the rule of a row, whose constraints say that one of the two kinds is there; whether it is sound is not asked here."""
    if cron is None:
        return EveryRule(timedelta(seconds=every_seconds or 0.0))
    return CronRule(cron, tz or "UTC")


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the relation ``schedules`` as it was when it was read; pqrun makes these."""

    name: str
    job_type: str
    payload_json: str
    """The payload as JSON text; ``payload`` decodes it."""
    payload_version: int
    """The version of the task that the payload was written for; its jobs carry it."""
    queue: str
    priority: int
    max_attempts: int
    timeout_seconds: float | None
    dedupe_key: str | None
    backoff_seconds: tuple[float, ...] | None
    cron: str | None
    tz: str | None
    every: timedelta | None
    catch_up: CatchUp
    overlap: Overlap
    jitter: timedelta
    next_at: datetime | None
    """The planned time of the next firing; None: a worker is about to plan it."""
    last_at: datetime | None
    """The planned time of the last firing that made a job."""
    last_job_id: int | None
    paused_at: datetime | None
    orphaned_at: datetime | None
    """Since when no code declares it any more; it does not fire."""
    origin: Literal["code", "operator"]
    app: str | None
    """The name of the app whose code declared it; None where an operator made it."""
    code_definition: str | None
    """The last definition seen in code, as JSON."""
    revision: int
    """Grows with every change of the definition or the state, not with firings."""
    created_at: datetime
    updated_at: datetime
    """When definition or state were last changed."""

    @property
    def payload(self) -> JsonObject:
        """The payload of its jobs, decoded anew on each access."""
        payload: JsonObject = msgspec.json.decode(self.payload_json)  # an object: a CHECK of the table says so
        return payload

    @property
    def rule(self) -> Rule:
        """When it fires, as a value."""
        seconds = None if self.every is None else self.every.total_seconds()
        return join_rule(self.cron, self.tz, seconds)

    @property
    def words(self) -> str:
        """When it fires, in words: ``"at 02:30 every day, Europe/Berlin"``."""
        return words(self.rule)

    @property
    def state(self) -> ScheduleState:
        """Whether it fires, and why not: ``"active"``, ``"paused"`` or ``"orphaned"``."""
        if self.orphaned_at is not None:
            return "orphaned"
        return "active" if self.paused_at is None else "paused"

    @property
    def definition(self) -> ScheduleDefinition:
        """What is in force now, as a value that can be changed and stored again."""
        job = NewJob(
            job_type=self.job_type,
            payload=self.payload_json,
            payload_version=self.payload_version,
            queue=self.queue,
            priority=self.priority,
            max_attempts=self.max_attempts,
            timeout_seconds=self.timeout_seconds,
            dedupe_key=self.dedupe_key,
            backoff_seconds=self.backoff_seconds,
        )
        return ScheduleDefinition(
            name=self.name,
            job=job,
            rule=self.rule,
            catch_up=self.catch_up,
            overlap=self.overlap,
            jitter=self.jitter,
        )

    @property
    def is_edited(self) -> bool:
        """Whether an operator changed what the code says."""
        return self.code_definition is not None and self.definition.text != self.code_definition

    def preview(self, count: int = 5, *, after: datetime) -> list[datetime]:
        """Return the next ``count`` planned times after an aware instant, in UTC, whatever its state."""
        return preview(self.rule, after, count)

    def __repr__(self) -> str:
        return f"Schedule(name={self.name!r}, job_type={self.job_type!r}, state={self.state!r})"
