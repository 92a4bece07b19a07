"""Every exception of pqrun, in one tree.

::

    PqrunError
    ├── ConfigurationError            no DSN, a malformed one, options that exclude each other
    │   └── MissingExtraError         an optional package is not installed (also an ImportError)
    ├── DeclarationError              a task that cannot be registered (also a TypeError)
    ├── DeferError                    nothing was written (also a ValueError)
    │   ├── ArgumentsError            arguments that a task does not take (also a TypeError)
    │   ├── PayloadError              the payload does not satisfy the model, or cannot be stored
    │   ├── OptionError               an impossible option; names it
    │   │   └── QueryError            a query that cannot be read; has ``position``
    │   └── DedupeKeyError            a key that cannot be made from this payload
    ├── NotOpenError                  the app or store was not opened
    ├── WrongLoopError                opened in another event loop or process, or a synchronous call inside a running loop
    ├── StoreError                    the database said no
    │   ├── DatabaseUnavailableError  no connection, or it broke
    │   ├── SchemaError               the schema is missing, older or newer than this code
    │   └── ConflictError             serialization conflict inside your transaction: repeat it
    ├── JobError                      about one job; has ``job_id``
    │   ├── JobNotFound               no such row (never there, deleted, or removed by retention)
    │   ├── JobFailed                 it ended FAILED; has ``last_error``
    │   ├── JobCancelled              it ended CANCELLED
    │   ├── JobBusy                   its row stayed locked by another transaction
    │   ├── RetryRefused              it cannot be retried; has ``conflicting_id``
    │   ├── ResultTimeout             not finished in time (also a TimeoutError)
    │   ├── ResultDecodeError         the stored result does not satisfy the declared type
    │   ├── ClaimLost                 this worker no longer owns the job
    │   └── CompletionRefused         ``complete`` after a cancel request, or a second time
    ├── ScheduleError                 about one schedule; has ``name``
    │   ├── ScheduleNotFound          there is no schedule of that name
    │   └── ScheduleRefused           it cannot be added, changed, run or removed as asked; has ``job_id``
    ├── PayloadDecodeError            a stored payload does not satisfy the model
    │   └── PayloadVersionError       it is of a newer version than the code; has ``version``
    ├── ResultError                   a handler's result does not satisfy its type, or cannot be stored
    ├── HandlerTimeout                a handler ran longer than its ``timeout`` (also a TimeoutError)
    └── EmbeddedError                 the database of the package's own could not be started

``pqrun.job.signals`` adds what a handler raises to choose its outcome, HandlerSignal with Snooze, Abort and RetryAfter: no errors, yet
exceptions of pqrun. ``pqrun.testing`` adds DrainFailed and DrainStopped, which are AssertionErrors too.

No message holds a DSN's password, a payload or a result.
"""

__all__ = [
    "ArgumentsError",
    "ClaimLost",
    "CompletionRefused",
    "ConfigurationError",
    "ConflictError",
    "DatabaseUnavailableError",
    "DeclarationError",
    "DedupeKeyError",
    "DeferError",
    "EmbeddedError",
    "HandlerTimeout",
    "JobBusy",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobNotFound",
    "MissingExtraError",
    "NotOpenError",
    "OptionError",
    "PayloadDecodeError",
    "PayloadError",
    "PayloadVersionError",
    "PqrunError",
    "QueryError",
    "ResultDecodeError",
    "ResultError",
    "ResultTimeout",
    "RetryRefused",
    "ScheduleError",
    "ScheduleNotFound",
    "ScheduleRefused",
    "SchemaError",
    "StoreError",
    "WrongLoopError",
]


class PqrunError(Exception):
    """The root of all exceptions that pqrun raises on purpose."""


class ConfigurationError(PqrunError):
    """The way pqrun was set up cannot work; the message names every way that does."""


class MissingExtraError(ConfigurationError, ImportError):
    """An optional package is needed here; the message holds the exact pip line."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional package that is not installed; run: pip install 'pqrun[{extra}]'")


class DeclarationError(PqrunError, TypeError):
    """A task cannot be registered as it is written; raised where it is declared."""


class DeferError(PqrunError, ValueError):
    """A job was refused before anything was written; a surrounding transaction stays usable."""


class ArgumentsError(DeferError, TypeError):
    """A call with arguments that the task does not take; the message shows what it takes."""


class PayloadError(DeferError):
    """The payload does not satisfy the model, or holds what PostgreSQL cannot store.

    ``errors`` lists (path, reason) pairs; neither holds the refused value.
    """

    def __init__(self, message: str, errors: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.errors = errors


class OptionError(DeferError):
    """An option has an impossible value; the message names the option, what was expected and what came."""


class QueryError(OptionError):
    """A query such as ``state:failed task:send_*`` cannot be read; the message says where, what was expected, and the nearest key.

    ``position`` is the character where it goes wrong, from 1. No value of a payload or an error is in the message.
    """

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"query, character {position}: {reason}")
        self.position = position


class DedupeKeyError(DeferError):
    """No dedupe key can be made from this payload (a field is None or NaN), or the key cannot be stored."""


class NotOpenError(PqrunError):
    """The app or store is not open; the message shows the ways to open it."""


class WrongLoopError(PqrunError):
    """The store was opened in another event loop or process, or a synchronous call would block the running loop; says what to do."""


class StoreError(PqrunError):
    """The database refused a statement; the message holds PostgreSQL's own message and SQLSTATE."""

    sqlstate: str | None = None
    """PostgreSQL's five characters, where it answered; then nothing of the statement was written."""


class DatabaseUnavailableError(StoreError):
    """The database could not be reached, or the connection broke; the outcome of a write may be unknown."""


class SchemaError(StoreError):
    """The pqrun schema is missing, older or newer than this code; the message names the command to run."""


class ConflictError(StoreError):
    """A serialization conflict inside the caller's own transaction: repeat that transaction."""


class JobError(PqrunError):
    """An error about one job; ``job_id`` says which."""

    def __init__(self, message: str, job_id: int) -> None:
        super().__init__(message)
        self.job_id = job_id


class JobNotFound(JobError):
    """There is no such job: it never existed, was deleted, or was removed by retention."""


class JobFailed(JobError):
    """The job ended FAILED; ``last_error`` is the text stored with it."""

    def __init__(self, message: str, job_id: int, last_error: str | None = None) -> None:
        super().__init__(message, job_id)
        self.last_error = last_error


class JobCancelled(JobError):
    """The job ended CANCELLED."""


class JobBusy(JobError):
    """The job's row stayed locked by another transaction for the whole time that was allowed."""


class RetryRefused(JobError):
    """The job cannot be retried by hand; ``conflicting_id`` is the active job that holds its dedupe key, if that is why."""

    def __init__(self, message: str, job_id: int, conflicting_id: int | None = None) -> None:
        super().__init__(message, job_id)
        self.conflicting_id = conflicting_id


class ResultTimeout(JobError, TimeoutError):
    """The job did not finish within the time that ``result(timeout=)`` was given; it goes on."""


class ResultDecodeError(JobError):
    """The stored result does not satisfy the task's declared result type (written by older code?)."""


class ClaimLost(JobError):
    """The claim is no longer this worker's: the job was recovered, finished elsewhere, or removed."""


class CompletionRefused(JobError):
    """``complete`` cannot be recorded: the job was asked to cancel, or was completed before."""


class ScheduleError(PqrunError):
    """An error about one schedule; ``name`` says which."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class ScheduleNotFound(ScheduleError):
    """There is no schedule of that name."""


class ScheduleRefused(ScheduleError):
    """The schedule cannot be added, changed, run or removed as asked; ``job_id`` is the active job that stands in the way, if one does."""

    def __init__(self, message: str, name: str, job_id: int | None = None) -> None:
        super().__init__(message, name)
        self.job_id = job_id


class PayloadDecodeError(PqrunError):
    """A stored payload does not satisfy the model; the message names fields and reasons, never values.

    ``errors`` lists (path, reason) pairs, as those of PayloadError; none where the payload could not be read at all.
    """

    def __init__(self, message: str, errors: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.errors = errors


class PayloadVersionError(PayloadDecodeError):
    """A stored payload is of a newer version than this code, which leaves it to newer code; ``version`` is the payload's."""

    def __init__(self, message: str, version: int) -> None:
        super().__init__(message)
        self.version = version


class ResultError(PqrunError):
    """A handler's result does not satisfy the declared type or cannot be stored; the message names the field."""


class HandlerTimeout(PqrunError, TimeoutError):
    """A handler ran longer than its task's ``timeout``."""


class EmbeddedError(PqrunError):
    """The embedded PostgreSQL could not be prepared, started or stopped."""
