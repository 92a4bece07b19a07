"""pqrun: a typed background-job queue on PostgreSQL for async Python."""

from pqrun.app import App
from pqrun.check import CheckProgress, CheckReport, ShapeChange, UndecodableJobs, UnservedJobs
from pqrun.deferral import Deferral
from pqrun.errors import (
    ArgumentsError,
    ClaimLost,
    CompletionRefused,
    ConfigurationError,
    ConflictError,
    DatabaseUnavailableError,
    DeclarationError,
    DedupeKeyError,
    DeferError,
    EmbeddedError,
    HandlerTimeout,
    JobBusy,
    JobCancelled,
    JobError,
    JobFailed,
    JobNotFound,
    MissingExtraError,
    NotOpenError,
    OptionError,
    PayloadDecodeError,
    PayloadError,
    PayloadVersionError,
    PqrunError,
    QueryError,
    ResultDecodeError,
    ResultError,
    ResultTimeout,
    RetryRefused,
    ScheduleError,
    ScheduleNotFound,
    ScheduleRefused,
    SchemaError,
    StoreError,
    WrongLoopError,
)
from pqrun.handle import Call, JobHandle
from pqrun.job.attempts import ErrorGroup, JobAttempt
from pqrun.job.bulk import BulkProgress, BulkReport, Refusal, RefusalReason
from pqrun.job.definition import Schedule, ScheduleDefinition
from pqrun.job.explaining import Explanation, Reason, Why
from pqrun.job.failure import FailureKind
from pqrun.job.filter import JobFilter
from pqrun.job.listing import JobCount, JobLine, Listing
from pqrun.job.outcome import CancelOutcome
from pqrun.job.pause import Pause
from pqrun.job.policy import BackoffPolicy, ExponentialBackoff, IdlePollPolicy, LoopErrorPolicy
from pqrun.job.progress import Progress
from pqrun.job.queue import QueueState
from pqrun.job.record import Job, JsonObject, JsonValue
from pqrun.job.registered import RegisteredWorker
from pqrun.job.shape import FieldChange
from pqrun.job.signals import Abort, HandlerSignal, RetryAfter, Snooze
from pqrun.job.state import Status
from pqrun.job.statistics import Histogram, StatisticsRow
from pqrun.run.context import JobContext
from pqrun.run.middleware import CallNext
from pqrun.run.vitals import Vitals
from pqrun.schedules import Preview, Schedules
from pqrun.selection import JobSelection
from pqrun.store import PgJobStore
from pqrun.store.ports import AnyConnection, AnySyncConnection, Connection, Pool
from pqrun.store.selection import Selection
from pqrun.task import Task
from pqrun.worker import Worker
from pqrun.workers import Workers, WorkerStacks

__all__ = [
    "Abort",
    "AnyConnection",
    "AnySyncConnection",
    "App",
    "ArgumentsError",
    "BackoffPolicy",
    "BulkProgress",
    "BulkReport",
    "Call",
    "CallNext",
    "CancelOutcome",
    "CheckProgress",
    "CheckReport",
    "ClaimLost",
    "CompletionRefused",
    "ConfigurationError",
    "ConflictError",
    "Connection",
    "DatabaseUnavailableError",
    "DeclarationError",
    "DedupeKeyError",
    "DeferError",
    "Deferral",
    "EmbeddedError",
    "ErrorGroup",
    "Explanation",
    "ExponentialBackoff",
    "FailureKind",
    "FieldChange",
    "HandlerSignal",
    "HandlerTimeout",
    "Histogram",
    "IdlePollPolicy",
    "Job",
    "JobAttempt",
    "JobBusy",
    "JobCancelled",
    "JobContext",
    "JobCount",
    "JobError",
    "JobFailed",
    "JobFilter",
    "JobHandle",
    "JobLine",
    "JobNotFound",
    "JobSelection",
    "JsonObject",
    "JsonValue",
    "Listing",
    "LoopErrorPolicy",
    "MissingExtraError",
    "NotOpenError",
    "OptionError",
    "Pause",
    "PayloadDecodeError",
    "PayloadError",
    "PayloadVersionError",
    "PgJobStore",
    "Pool",
    "PqrunError",
    "Preview",
    "Progress",
    "QueryError",
    "QueueState",
    "Reason",
    "Refusal",
    "RefusalReason",
    "RegisteredWorker",
    "ResultDecodeError",
    "ResultError",
    "ResultTimeout",
    "RetryAfter",
    "RetryRefused",
    "Schedule",
    "ScheduleDefinition",
    "ScheduleError",
    "ScheduleNotFound",
    "ScheduleRefused",
    "Schedules",
    "SchemaError",
    "Selection",
    "ShapeChange",
    "Snooze",
    "StatisticsRow",
    "Status",
    "StoreError",
    "Task",
    "UndecodableJobs",
    "UnservedJobs",
    "Vitals",
    "Why",
    "Worker",
    "WorkerStacks",
    "Workers",
    "WrongLoopError",
]
