"""``retry_on=`` and ``no_retry_on=``: what is refused at declaration, and what the rules then say."""

from typing import Any

import pytest

from pqrun import Abort, HandlerSignal, HandlerTimeout, OptionError
from pqrun.job.rules import RetryRules, check_rules


class Own(ConnectionError): ...


class Liar(type):
    """Claims to be the class of everything: except clauses do not ask, and neither do rules."""

    def __instancecheck__(cls, instance: object) -> bool:
        raise AssertionError

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls or cls in subclass.__mro__


class Lying(Exception, metaclass=Liar): ...


def rules(**options: Any) -> RetryRules:
    checked = check_rules(**options)
    assert checked is not None
    return checked


def test_without_rules_there_is_nothing_to_ask() -> None:
    assert check_rules() is None


def test_only_what_is_named_is_tried_again_subclasses_included() -> None:
    only = rules(retry_on=(ConnectionError, KeyError))
    assert only.allow(ConnectionError())
    assert only.allow(Own())
    assert not only.allow(LookupError())
    assert not only.allow(SystemExit())
    assert rules(retry_on=OSError).allow(Own())


def test_what_is_named_is_not_tried_again_whatever_else_is() -> None:
    but = rules(no_retry_on=ValueError)
    assert not but.allow(UnicodeError())
    assert but.allow(KeyError())
    both = rules(retry_on=OSError, no_retry_on=(PermissionError, FileNotFoundError))
    assert both.allow(ConnectionError())
    assert not both.allow(FileNotFoundError())
    assert not both.allow(ValueError())


def test_a_timeout_is_a_handler_timeout_which_is_a_timeout_error_too() -> None:
    for kind in (HandlerTimeout, TimeoutError):
        assert not rules(no_retry_on=kind).allow(HandlerTimeout("t ran longer"))
        assert rules(retry_on=kind).allow(HandlerTimeout("t ran longer"))


def test_a_group_of_one_is_judged_by_what_it_holds() -> None:
    only = rules(retry_on=ConnectionError)
    assert only.allow(ExceptionGroup("g", [Own()]))
    assert not only.allow(ExceptionGroup("g", [Own(), Own()]))
    assert rules(retry_on=ExceptionGroup).allow(ExceptionGroup("g", [Own(), ValueError()]))


def test_matching_runs_no_code_of_the_classes() -> None:
    assert not rules(no_retry_on=Lying).allow(Lying())
    assert rules(no_retry_on=Lying).allow(ValueError())


@pytest.mark.parametrize("option", ["retry_on", "no_retry_on"])
@pytest.mark.parametrize(
    ("value", "came"),
    [
        ((), "an empty tuple"),
        ("ValueError", "a value of type str"),
        ([ValueError], "a value of type list"),
        (ValueError("x"), "a value of type ValueError"),
        ((ValueError, int), "int"),
        ((ValueError, (KeyError,)), "a value of type tuple"),
    ],
)
def test_what_is_no_exception_class_is_refused_by_the_name_of_the_option(option: str, value: object, came: str) -> None:
    with pytest.raises(OptionError, match=rf"^{option}: expected an exception class, or a tuple of them; got {came}"):
        check_rules(**{option: value})


@pytest.mark.parametrize("kind", [Abort, HandlerSignal])
@pytest.mark.parametrize("option", ["retry_on", "no_retry_on"])
def test_a_signal_is_refused_since_no_rule_counts_for_it(option: str, kind: type[HandlerSignal]) -> None:
    with pytest.raises(OptionError, match=f"^{option}: {kind.__name__} says by itself"):
        check_rules(**{option: kind})


def test_a_rule_that_could_never_count_is_refused() -> None:
    with pytest.raises(
        OptionError, match="retry_on: KeyError would never be tried again, since no_retry_on has it too"
    ):
        check_rules(retry_on=(OSError, KeyError), no_retry_on=KeyError)
    with pytest.raises(OptionError, match="no_retry_on has OSError, of which it is a subclass"):
        check_rules(retry_on=Own, no_retry_on=(ValueError, OSError))
