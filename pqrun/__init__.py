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
    ResultDecodeError,
    ResultError,
    ResultTimeout,
    RetryRefused,
    SchemaError,
    StoreError,
    WrongLoopError,
)
from pqrun.handle import Call, JobHandle
from pqrun.job.outcome import CancelOutcome
from pqrun.job.policy import BackoffPolicy, ExponentialBackoff, IdlePollPolicy, LoopErrorPolicy
from pqrun.job.record import Job, JsonObject, JsonValue
from pqrun.job.shape import FieldChange
from pqrun.job.signals import Abort, HandlerSignal, RetryAfter, Snooze
from pqrun.job.state import Status
from pqrun.run.context import JobContext
from pqrun.run.middleware import CallNext
from pqrun.store import PgJobStore
from pqrun.store.ports import AnyConnection, AnySyncConnection, Connection, Pool
from pqrun.task import Task
from pqrun.worker import Worker

__all__ = [
    "Abort",
    "AnyConnection",
    "AnySyncConnection",
    "App",
    "ArgumentsError",
    "BackoffPolicy",
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
    "ExponentialBackoff",
    "FieldChange",
    "HandlerSignal",
    "HandlerTimeout",
    "IdlePollPolicy",
    "Job",
    "JobBusy",
    "JobCancelled",
    "JobContext",
    "JobError",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "JsonObject",
    "JsonValue",
    "LoopErrorPolicy",
    "MissingExtraError",
    "NotOpenError",
    "OptionError",
    "PayloadDecodeError",
    "PayloadError",
    "PayloadVersionError",
    "PgJobStore",
    "Pool",
    "PqrunError",
    "ResultDecodeError",
    "ResultError",
    "ResultTimeout",
    "RetryAfter",
    "RetryRefused",
    "SchemaError",
    "ShapeChange",
    "Snooze",
    "Status",
    "StoreError",
    "Task",
    "UndecodableJobs",
    "UnservedJobs",
    "Worker",
    "WrongLoopError",
]
