"""How slots are shared out among queues, and what operators want."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqrun.errors import OptionError
from pqrun.job.serving import QueueChoice, check_queues
from pqrun.job.wanted import apply_wanted, wanted_text


def test_names_alone_share_what_there_is() -> None:
    serving = check_queues(["b", "a", "b"]).serving()
    assert (serving.queues, serving.concurrency, serving.slots, serving.shared) == (("a", "b"), 1, {}, 1)
    assert check_queues(None).serving().queues is None


def test_numbers_add_up_to_the_concurrency() -> None:
    serving = check_queues({"default": 10, "mail": 2}).serving()
    assert (serving.concurrency, serving.slots, serving.shared) == (12, {"default": 10, "mail": 2}, 0)
    assert serving.serves("mail")
    assert not serving.serves("other")


def test_queues_without_a_number_share_what_the_others_leave() -> None:
    choice = check_queues({"default": None, "slow": None, "mail": 2})
    assert (choice.serving().concurrency, choice.serving().shared) == (3, 1)
    assert QueueChoice(choice.queues, choice.numbers, 20).serving().shared == 18


def test_numbers_that_do_not_fit_become_smaller_in_proportion() -> None:
    assert QueueChoice(("a", "b"), {"a": 10, "b": 2}, 8).serving().slots == {"a": 6, "b": 2}
    assert QueueChoice(("a", "b"), {"a": 10, "b": 10}, 8).serving().slots == {"a": 4, "b": 4}
    assert QueueChoice(("a", "b", "c"), {"a": 5, "b": 5}, 5).serving().shared == 1


def test_a_concurrency_with_less_than_one_for_each_is_refused() -> None:
    with pytest.raises(OptionError, match=r"concurrency: 1 cannot be shared out: there are 2 queues or groups"):
        QueueChoice(("a", "b"), {"a": 1, "b": 1}, 1).serving()


@given(
    numbers=st.lists(st.integers(1, 10_000), min_size=1, max_size=20),
    has_other=st.booleans(),
    concurrency=st.integers(1, 10_000),
)
def test_shares_fit_leave_nobody_out_and_exceed_no_number(
    numbers: list[int], has_other: bool, concurrency: int
) -> None:
    named = {f"q{position}": number for position, number in enumerate(numbers)}
    choice = QueueChoice((*named, *(["other"] if has_other else [])), named, concurrency)
    if concurrency < choice.least:
        return
    serving = choice.serving()
    shares = [*serving.slots.values(), *([serving.shared] if has_other else [])]
    assert sum(shares) <= concurrency
    assert min(shares) >= 1
    assert all(serving.slots[queue] <= number for queue, number in named.items())
    if sum(numbers) + has_other >= concurrency:
        assert sum(shares) == concurrency  # nothing is left lying about


@pytest.mark.parametrize(
    "queues", ["mail", [], {}, 7, ["a", ""], {"a": 0}, {"a": 1.5}, {"a": True}, {"a": 10_001}, {"a": "2"}, {1: 1}]
)
def test_what_cannot_be_served_is_refused(queues: object) -> None:
    with pytest.raises(OptionError, match=r"^queue"):
        check_queues(queues)


def test_numbers_may_not_add_up_to_more_than_a_process_can_feed() -> None:
    with pytest.raises(OptionError, match="add up to 20000"):
        check_queues({"a": 10_000, "b": 10_000})


def test_what_is_wanted_replaces_what_it_names_and_no_more() -> None:
    choice = QueueChoice(("a", "b"), {"a": 3}, 5)
    assert apply_wanted(wanted_text(concurrency=9), choice) == QueueChoice(("a", "b"), {"a": 3}, 9)
    assert apply_wanted(wanted_text(queues={"b": None, "c": 2}), choice) == QueueChoice(("b", "c"), {"c": 2}, 5)
    assert apply_wanted(wanted_text(queues=None, concurrency=None), choice) == QueueChoice()
    assert apply_wanted('{"drain": true}', choice) == choice  # of a later version
    assert json.loads(wanted_text(queues=["x"])) == {"queues": {"x": None}}


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"concurrency": 0}', '{"queues": {}}', '{"queues": "a"}', '{"concurrency": 1}']
)
def test_what_a_worker_cannot_do_is_refused_as_a_whole(text: str) -> None:
    with pytest.raises(OptionError):
        apply_wanted(text, QueueChoice(("a", "b"), {"a": 3, "b": 3}, 6))
