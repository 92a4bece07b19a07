"""What a handler raises to choose its own outcome: ``Snooze``, ``Abort``, ``RetryAfter``.

They are exceptions, so they leave a handler from any depth, and middleware sees them pass like any other: one that catches exceptions
lets them through with ``except HandlerSignal: raise``. They are part of the tree of ``pqrun.errors``, although none of them is an error.
Each checks what it is given when it is made, where the mistake is; each can be pickled, for handlers that work in other processes.
"""

from datetime import timedelta
from typing import Final

from pqrun.errors import OptionError, PqrunError
from pqrun.job.options import check_delay
from pqrun.job.storable import one_line

__all__ = ["REASON_SHOWN_MAX", "Abort", "HandlerSignal", "RetryAfter", "Snooze", "sole_exception"]

REASON_SHOWN_MAX: Final = 200
"""Characters of the reason of a snooze that a line of the log repeats."""

_DEPTH_MAX: Final = 100


class HandlerSignal(PqrunError):
    """What ``Snooze``, ``Abort`` and ``RetryAfter`` have in common; to be raised by handlers and middleware, never by pqrun."""

    __module__ = "pqrun"  # what a stored traceback calls them: the name by which users know them


class Snooze(HandlerSignal):
    """Put the job back to SCHEDULED, due ``delay`` from now by the database's clock; no attempt is used.

    ``delay``: a timedelta from 0 to 365,250 days, like ``run_after``; ``reason`` is for the log, and is not stored. A job may be
    snoozed 1,000 times (``job.snoozes`` tells how often it was); from then on each further snooze is an ordinary failure, which counts
    an attempt, waits for the backoff and says so in ``last_error``. Raises OptionError, naming the argument.
    """

    __module__ = "pqrun"

    def __init__(self, delay: timedelta, reason: str | None = None) -> None:
        self.delay_seconds: Final = check_delay(delay, "Snooze.delay")
        super().__init__(delay, reason)  # the arguments themselves, from which pickle makes it again
        self.reason: Final = None if reason is None else _checked_reason(reason, "Snooze.reason")

    def __str__(self) -> str:
        return _told(self.delay_seconds, self.reason)


class Abort(HandlerSignal):
    """End the job FAILED at once, whatever attempts are left; ``last_error`` says ``Abort:`` and the reason, and what it was raised from.

    ``reason``: text, not empty. Raises OptionError for any other.
    """

    __module__ = "pqrun"

    def __init__(self, reason: str) -> None:
        self.reason: Final = _checked_reason(reason, "Abort.reason")
        super().__init__(reason)

    def __str__(self) -> str:
        return self.reason


class RetryAfter(HandlerSignal):
    """Fail this attempt, and start the next ``delay`` from now instead of after the backoff; FAILED where no attempt is left.

    ``delay``: a timedelta from 0 to 365,250 days, like ``run_after``. ``reason`` is stored in ``last_error``, with what this was raised
    from. Raises OptionError, naming the argument.
    """

    __module__ = "pqrun"

    def __init__(self, delay: timedelta, reason: str | None = None) -> None:
        self.delay_seconds: Final = check_delay(delay, "RetryAfter.delay")
        super().__init__(delay, reason)
        self.reason: Final = None if reason is None else _checked_reason(reason, "RetryAfter.reason")

    def __str__(self) -> str:
        return _told(self.delay_seconds, self.reason)


def sole_exception(error: BaseException) -> BaseException:
    """Return what a group holds, where it holds one exception alone, as a TaskGroup makes of it; else the exception itself."""
    for _ in range(_DEPTH_MAX):
        if not isinstance(error, BaseExceptionGroup) or len(error.exceptions) != 1:
            break
        error = error.exceptions[0]
    return error


def _checked_reason(reason: object, option: str) -> str:
    if not isinstance(reason, str):
        raise OptionError(f"{option}: expected text; got {type(reason).__name__}")
    if not reason.strip():
        raise OptionError(f"{option}: expected text that says why; got an empty one")
    return reason


def _told(delay_seconds: float, reason: str | None) -> str:
    after = one_line(str(timedelta(seconds=delay_seconds)))
    return f"in {after}" if reason is None else f"in {after}: {reason}"
