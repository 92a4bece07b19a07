"""How long to wait: before a retry, when there is nothing to do, after an error of a loop.

Three classes to subclass, one method each, and ``ExponentialBackoff``, a ready one. Loops never call that method themselves: they
ask the ``judge_*`` functions, which survive whatever a subclass does. What it raises, and what it returns that is negative, absurd or
not a number, is replaced by the answer of the default policy, together with a complaint for the log. So no policy can lose a job, stop a
loop or make one spin.

Nothing here reads a clock or draws a random number of its own: jitter is handed in, or drawn by a function that is.
"""

import random
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Literal, NamedTuple, TypeGuard

from pqrun.errors import OptionError
from pqrun.job.storable import one_line

__all__ = [
    "IDLE_BASE_SECONDS_DEFAULT",
    "IDLE_MAX_SECONDS_DEFAULT",
    "RETRY_DELAY_MAX",
    "SLEEP_MAX",
    "BackoffPolicy",
    "ExponentialBackoff",
    "IdlePollPolicy",
    "Judged",
    "LoopErrorPolicy",
    "judge_error_sleep",
    "judge_idle_sleep",
    "judge_retry_delay",
]

RETRY_DELAY_MAX: Final = timedelta(days=365)
"""The longest delay that a ``BackoffPolicy`` may ask for: more is a mistake, and may not fit a timestamp."""

SLEEP_MAX: Final = timedelta(days=1)
"""The longest sleep that an ``IdlePollPolicy`` or a ``LoopErrorPolicy`` may ask for: more is a mistake."""

IDLE_BASE_SECONDS_DEFAULT: Final = 1.0
IDLE_MAX_SECONDS_DEFAULT: Final = 10.0

_MINUTE: Final = timedelta(minutes=1)
# After the first, second, ... failed attempt; the last one repeats.
_RETRY_DELAYS: Final = (_MINUTE, 5 * _MINUTE, 30 * _MINUTE, 120 * _MINUTE, 360 * _MINUTE)

# Between the base and the maximum.
_IDLE_STEPS_SECONDS: Final = (2.0, 5.0)
# Whatever a policy says: a sleep of 0 would make an idle worker query the database in a tight loop.
_IDLE_FLOOR_SECONDS: Final = 0.01

# The floor doubles from the first to the last, and up to a quarter is added: all of it lies between 0.05 s and 5 s.
_ERROR_FLOOR_FIRST_SECONDS: Final = 0.05
_ERROR_FLOOR_LAST_SECONDS: Final = 4.0
_ERROR_FLOOR_JITTER: Final = 0.25

# Characters of a policy's own exception message that a complaint repeats.
_MESSAGE_MAX: Final = 200


class BackoffPolicy:
    """How long a failed job waits for its next attempt: 1 min, 5 min, 30 min, 2 h, then 6 h each time.

    Subclass it, override ``retry_delay``, and give an instance as ``backoff=`` to a worker or to one task::

        class EveryTenSeconds(BackoffPolicy):
            def retry_delay(self, attempts: int) -> timedelta:
                return timedelta(seconds=10)
    """

    def retry_delay(self, attempts: int) -> timedelta:
        """Say how long to wait after the failed attempt number ``attempts`` (from 1).

        An override may return anything from zero to 365 days; a plain number counts as seconds. What it raises, and any
        other answer, is logged and replaced by the default above.
        """
        return _RETRY_DELAYS[min(max(attempts, 1), len(_RETRY_DELAYS)) - 1]


class ExponentialBackoff(BackoffPolicy):
    """Delays that grow by a factor: ``base``, ``base * factor``, ``base * factor**2`` … up to ``cap``, spread by ``jitter``.

    ``base`` (1 min) and ``cap`` (6 h) are seconds or timedeltas, above 0 and 365 days at most; ``factor`` (2.0) is 1 or more.
    ``jitter`` (0.1) is a share from 0 to 1 by which a delay may be shorter or longer (0.1: between 0.9 and 1.1 times), or ``"full"``:
    anything from 0 up to the delay. Whatever is drawn, the answer is from 0 to ``cap``. ``draw`` gives numbers from 0 up to 1;
    by default ``random.random``. Raises OptionError, naming the argument.
    ::

        @jobs.task(backoff=ExponentialBackoff(timedelta(seconds=2), factor=3, cap=timedelta(minutes=10)))
    """

    def __init__(
        self,
        base: float | timedelta = _MINUTE,
        *,
        factor: float = 2.0,
        cap: float | timedelta = timedelta(hours=6),
        jitter: float | Literal["full"] = 0.1,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.base_seconds = _checked_duration("base", base)
        self.cap_seconds = _checked_duration("cap", cap)
        if self.cap_seconds < self.base_seconds:
            raise OptionError(f"cap: expected {self.base_seconds:g} s (the base) or more; got {self.cap_seconds:g} s")
        if not (_is_finite(factor) and factor >= 1):
            raise OptionError(f"factor: expected a number, 1 or more; got {_shown(factor)}")
        if jitter != "full" and not (_is_finite(jitter) and 0 <= jitter <= 1):
            raise OptionError(f"jitter: expected a share from 0 to 1, or 'full'; got {_shown(jitter)}")
        if not callable(draw):
            raise OptionError(f"draw: expected a function that gives numbers from 0 up to 1; got {_shown(draw)}")
        self.factor = float(factor)
        self.jitter = jitter
        self._share = None if jitter == "full" else float(jitter)
        self._draw = draw

    def retry_delay(self, attempts: int) -> timedelta:
        """Say how long to wait after the failed attempt number ``attempts`` (from 1): from zero to the cap."""
        delay = self._undisturbed(max(attempts, 1) - 1)
        if self._share is None:
            delay *= self._draw()
        elif self._share:
            delay *= 1 + self._share * (2 * self._draw() - 1)
        # Longer by jitter than the cap, or by what a function of the caller's draws.
        return timedelta(seconds=min(max(delay, 0.0), self.cap_seconds))

    def _undisturbed(self, steps: int) -> float:
        try:
            return min(self.base_seconds * self.factor**steps, self.cap_seconds)
        except OverflowError:
            return self.cap_seconds

    def __repr__(self) -> str:
        values = f"{self.base_seconds:g}, factor={self.factor:g}, cap={self.cap_seconds:g}, jitter={self.jitter!r}"
        return f"ExponentialBackoff({values})"


class IdlePollPolicy:
    """How long a worker that found nothing to do sleeps before it asks again; a notification wakes it earlier.

    ``base_seconds`` (1.0) after the first empty answer, then 2 s, 5 s, and from then on ``max_seconds`` (10.0): never
    less than the base, unless the base is above the maximum, and never more than the maximum.

    Raises ``OptionError`` when ``base_seconds`` is not a finite number from 0, or ``max_seconds`` not one above 0.
    """

    def __init__(
        self, base_seconds: float = IDLE_BASE_SECONDS_DEFAULT, max_seconds: float = IDLE_MAX_SECONDS_DEFAULT
    ) -> None:
        if not (_is_finite(base_seconds) and base_seconds >= 0):
            raise OptionError(f"base_seconds: expected a number of seconds, 0 or more; got {_shown(base_seconds)}")
        if not (_is_finite(max_seconds) and max_seconds > 0):
            raise OptionError(f"max_seconds: expected a number of seconds above 0; got {_shown(max_seconds)}")
        self.base_seconds = float(base_seconds)
        self.max_seconds = float(max_seconds)

    def next_sleep(self, empty_streak: int) -> float:
        """Seconds to sleep after ``empty_streak`` (from 1) empty answers in a row.

        An override may return anything from zero to one day, of which a worker makes at least 10 ms. What it raises,
        and any other answer, is logged and replaced by that of ``IdlePollPolicy()``.
        """
        if empty_streak <= 1:
            return min(self.base_seconds, self.max_seconds)
        if empty_streak <= 1 + len(_IDLE_STEPS_SECONDS):
            return min(max(self.base_seconds, _IDLE_STEPS_SECONDS[empty_streak - 2]), self.max_seconds)
        return self.max_seconds


class LoopErrorPolicy:
    """How long a loop of the worker sleeps after an error of its own (the database is gone, say).

    The default asks for nothing beyond the floor that holds for every policy: no sleep after the first error in a row,
    then 0.05 s, doubling, with jitter, to 5 s.
    """

    def next_sleep(self, consecutive_errors: int) -> float:
        """Seconds to sleep after ``consecutive_errors`` (from 1) errors in a row; 0.0 unless overridden.

        An override may return anything from zero to one day; the floor still holds. What it raises, and any other
        answer, is logged and replaced by 0.0.
        """
        del consecutive_errors  # for overrides
        return 0.0


class Judged(NamedTuple):
    """A policy's answer, made safe to use."""

    value: float
    """Seconds."""
    complaint: str | None
    """Why the policy's own answer was replaced: one line that can be logged and stored. None: it was not."""


def judge_retry_delay(policy: BackoffPolicy, attempts: int) -> Judged:
    """Seconds until the next attempt after the failed attempt number ``attempts``, from 0 to ``RETRY_DELAY_MAX``."""
    default = BackoffPolicy().retry_delay(attempts).total_seconds()
    return _judge(lambda: policy.retry_delay(attempts), _name_of(policy, "retry_delay"), RETRY_DELAY_MAX, default)


def judge_idle_sleep(policy: IdlePollPolicy, empty_streak: int) -> Judged:
    """Seconds to sleep after so many empty answers in a row, from 0.01 to ``SLEEP_MAX``."""
    default = IdlePollPolicy().next_sleep(empty_streak)
    judged = _judge(lambda: policy.next_sleep(empty_streak), _name_of(policy, "next_sleep"), SLEEP_MAX, default)
    return judged._replace(value=max(judged.value, _IDLE_FLOOR_SECONDS))


def judge_error_sleep(policy: LoopErrorPolicy, consecutive_errors: int, jitter: float) -> Judged:
    """Seconds to sleep after so many errors in a row: the policy's answer or the floor, whichever is longer.

    ``jitter`` (from 0 up to 1, drawn by the caller) lengthens the floor by up to a quarter, so that workers which lost
    their database together do not all come back in the same moment.
    """
    default = LoopErrorPolicy().next_sleep(consecutive_errors)
    judged = _judge(lambda: policy.next_sleep(consecutive_errors), _name_of(policy, "next_sleep"), SLEEP_MAX, default)
    return judged._replace(value=max(judged.value, _error_floor(consecutive_errors, jitter)))


def _error_floor(consecutive_errors: int, jitter: float) -> float:
    if consecutive_errors <= 1:
        return 0.0
    # The exponent is bounded before the power is taken: after a night without a database the count has five digits.
    doublings = min(consecutive_errors - 2, 16)
    floor = min(_ERROR_FLOOR_FIRST_SECONDS * 2.0**doublings, _ERROR_FLOOR_LAST_SECONDS)
    return floor * (1 + _ERROR_FLOOR_JITTER * jitter)


def _judge(ask: Callable[[], object], name: str, most: timedelta, default: float) -> Judged:
    """Ask a policy; take its answer if that is a duration from zero to ``most``, else the default with a complaint."""
    limit = most.total_seconds()
    try:
        answer = ask()
        seconds = answer.total_seconds() if isinstance(answer, timedelta) else answer
        if _is_number(seconds) and 0 <= seconds <= limit:
            return Judged(float(seconds), None)
        problem = f"returned {_shown(answer)} instead of 0 to {limit:.0f} s"
    except KeyboardInterrupt:
        raise  # Ctrl-C arrives wherever the main thread happens to be; it is nobody's answer.
    except BaseException as error:  # noqa: BLE001  # the border to user code: not even SystemExit may cost a job or a loop
        problem = f"raised {_described(error)}"
    return Judged(default, one_line(f"{name} {problem}; {default:g} s is used"))


def _checked_duration(option: str, value: object) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    most = RETRY_DELAY_MAX.total_seconds()
    if not (_is_number(seconds) and 0 < seconds <= most):
        expected = f"seconds or a timedelta, above 0 and at most {RETRY_DELAY_MAX.days} days"
        raise OptionError(f"{option}: expected {expected}; got {_shown(value)}")
    return float(seconds)


def _name_of(policy: object, method: str) -> str:
    return f"{type(policy).__qualname__}.{method}"


def _is_number(value: object) -> TypeGuard[int | float]:
    """Whether this is a number to a reader, too: True is 1 to Python only."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    return _is_number(value) and abs(value) <= sys.float_info.max  # math.isfinite raises for 10**400


def _shown(value: object) -> str:
    """Name what came without calling anything of an unknown type: its ``repr`` may raise, or be endless."""
    if isinstance(value, timedelta):
        return f"a timedelta of {value.total_seconds():g} s"
    if _is_number(value):
        return f"{value:g}" if isinstance(value, float) or abs(value) < 10**9 else "an integer beyond all bounds"
    return f"a value of type {type(value).__qualname__}"


def _described(error: BaseException) -> str:
    try:
        message = str(error)[:_MESSAGE_MAX]
    except Exception:  # noqa: BLE001  # the exception is the user's as well, and so is its __str__
        message = "(its __str__ raises)"
    return f"{type(error).__qualname__}: {message}" if message else type(error).__qualname__
