"""Errors of one duty in a row: counted, paced by the policy and its floor, and told as events."""

import time

from pqrun.errors import PqrunError
from pqrun.job.policy import LoopErrorPolicy, judge_error_sleep
from pqrun.job.storable import one_line
from pqrun.run.events import LoopFailed, LoopResumed

__all__ = ["ErrorStreak"]


class ErrorStreak:
    """Kept by the loop of one duty; the duty tells the events, on whatever loop it must."""

    def __init__(self, duty: str, policy: LoopErrorPolicy) -> None:
        self._duty = duty
        self._policy = policy
        self._errors = 0  # in a row
        self._since = 0.0  # monotonic time of the first of them

    def met(self, error: Exception, *, jitter: float, most_seconds: float = float("inf")) -> LoopFailed:
        """Count one more; the event says how long to sleep, ``most_seconds`` at most."""
        if not self._errors:
            self._since = time.monotonic()
        self._errors += 1
        judged = judge_error_sleep(self._policy, self._errors, jitter)
        text = str(error) if isinstance(error, PqrunError) else type(error).__name__
        if judged.complaint is not None:
            text = f"{text} ({judged.complaint})"
        return LoopFailed(self._duty, one_line(text), self._errors, min(judged.value, most_seconds))

    def ended(self) -> LoopResumed | None:
        """The duty did its work: the count begins anew. None: there was no error."""
        errors, self._errors = self._errors, 0
        return LoopResumed(self._duty, errors, time.monotonic() - self._since) if errors else None
