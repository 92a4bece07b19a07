"""Which exceptions of a handler are worth another attempt: what ``retry_on=`` and ``no_retry_on=`` of a task say, as a value.

Matching is that of ``except``: by class, subclasses included, and no code of the exception's runs for it.
"""

from typing import Final

import msgspec

from pqrun.errors import OptionError
from pqrun.job.signals import HandlerSignal, sole_exception

__all__ = ["RetryRules", "check_rules"]

_EXPECTED: Final = "expected an exception class, or a tuple of them"


class RetryRules(msgspec.Struct, frozen=True):
    """The rules of one task; make it with ``check_rules``."""

    retry_on: tuple[type[BaseException], ...] | None = None
    """Only these are tried again; None: all."""
    no_retry_on: tuple[type[BaseException], ...] = ()
    """These are not, whatever ``retry_on`` says."""

    def allow(self, error: BaseException) -> bool:
        """Whether another attempt may follow; a group of one exception counts as that exception."""
        lineage = type(sole_exception(error)).__mro__
        if any(kind in lineage for kind in self.no_retry_on):
            return False
        return self.retry_on is None or any(kind in lineage for kind in self.retry_on)


def check_rules(*, retry_on: object = None, no_retry_on: object = None) -> RetryRules | None:
    """Check the options as users write them, None where one is not given; raises OptionError, naming the option."""
    if retry_on is None and no_retry_on is None:
        return None
    wanted = None if retry_on is None else _checked_classes("retry_on", retry_on)
    refused = () if no_retry_on is None else _checked_classes("no_retry_on", no_retry_on)
    for kind in wanted or ():
        over = next((other for other in refused if issubclass(kind, other)), None)
        if over is not None:
            raise OptionError(
                f"retry_on: {kind.__name__} would never be tried again, since no_retry_on has {_also(kind, over)}; "
                "leave it out of one of them"
            )
    return RetryRules(wanted, refused)


def _also(kind: type[BaseException], over: type[BaseException]) -> str:
    return "it too" if kind is over else f"{over.__name__}, of which it is a subclass"


def _checked_classes(option: str, value: object) -> tuple[type[BaseException], ...]:
    classes: tuple[object, ...] = value if isinstance(value, tuple) else (value,)
    if not classes:
        raise OptionError(f"{option}: {_EXPECTED}; got an empty tuple (max_attempts=1 tries nothing again)")
    return tuple(dict.fromkeys(_checked_class(option, one) for one in classes))


def _checked_class(option: str, value: object) -> type[BaseException]:
    if not (isinstance(value, type) and issubclass(value, BaseException)):
        came = value.__name__ if isinstance(value, type) else f"a value of type {type(value).__name__}"
        raise OptionError(f"{option}: {_EXPECTED}; got {came}")
    if issubclass(value, HandlerSignal):
        raise OptionError(f"{option}: {value.__name__} says by itself what becomes of the job; no rule counts for it")
    return value
