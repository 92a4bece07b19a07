"""The stream of events."""

import logging

import pytest

from pqrun.run.events import Event, Events, Pruned, WorkerDied


def test_all_subscribers_hear_everything_in_order() -> None:
    events = Events()
    first: list[Event] = []
    second: list[Event] = []
    events.subscribe(first.append)
    events.emit(Pruned(1))
    events.subscribe(second.append)
    events.emit(WorkerDied("w"))
    assert first == [Pruned(1), WorkerDied("w")]
    assert second == [WorkerDied("w")]


def test_what_a_subscriber_raises_is_logged_and_reaches_neither_worker_nor_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = Events()
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise ValueError("mine")

    events.subscribe(broken)
    events.subscribe(heard.append)
    with caplog.at_level(logging.ERROR, logger="pqrun"):
        events.emit(Pruned(1))
    assert heard == [Pruned(1)]
    assert [record.getMessage() for record in caplog.records] == ["a subscriber of worker events failed on Pruned"]


def test_a_subscriber_that_left_hears_nothing_more_and_may_leave_twice() -> None:
    events = Events()
    heard: list[Event] = []
    leave = events.subscribe(heard.append)
    leave()
    leave()
    events.emit(Pruned(1))
    assert heard == []


def test_a_subscriber_that_leaves_while_it_is_told_costs_its_neighbour_no_event() -> None:
    events = Events()
    heard: list[Event] = []

    def once(event: Event) -> None:
        leave()

    leave = events.subscribe(once)
    events.subscribe(heard.append)
    events.emit(Pruned(1))
    assert heard == [Pruned(1)]


def test_the_same_function_may_subscribe_twice_and_leave_once() -> None:
    events = Events()
    heard: list[Event] = []
    leave = events.subscribe(heard.append)
    events.subscribe(heard.append)
    leave()
    leave()
    events.emit(Pruned(1))
    assert heard == [Pruned(1)]
