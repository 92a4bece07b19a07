"""Notifications, read; what cannot be read is passed over."""

import pytest

from pqrun.run.hints import Hints
from pqrun.store.claiming import Lane


class Ears:
    def __init__(self) -> None:
        self.heard: list[object] = []
        self.hints = Hints(
            on_ready=self.heard.append,
            on_suspect=lambda: self.heard.append("suspect"),
            on_due=lambda epoch: self.heard.append(("due", epoch)),
            on_cancel=lambda: self.heard.append("cancel"),
            on_left=lambda: self.heard.append("left"),
            on_await=lambda ids: self.heard.append(ids),
            on_schedules=lambda: self.heard.append("schedules"),
            on_change=lambda: self.heard.append("change"),
        )


@pytest.mark.parametrize(
    ("message", "heard"),
    [
        ("ready:0:default", Lane("default", 0)),
        ("ready:-5:a:b:c", Lane("a:b:c", -5)),
        ("ready:7:", Lane("", 7)),
        ("suspect:0:default", "suspect"),
        ("cancel:3:77", "cancel"),
        ("await:1,2,3", [1, 2, 3]),
        ("due:1769904000.25", ("due", 1_769_904_000.25)),
        ("left:3", "left"),
        ("schedules", "schedules"),
        ("pauses", "change"),
        ("wanted", "change"),
    ],
)
def test_each_kind_reaches_its_ear(message: str, heard: object) -> None:
    ears = Ears()
    ears.hints(message)
    assert ears.heard == [heard]


@pytest.mark.parametrize(
    "message", ["", "ready", "ready:x:default", "due:soon", "due:", "await:", "await:1,x", "hello:world", "ready:\x00"]
)
def test_what_cannot_be_read_is_passed_over(message: str) -> None:
    ears = Ears()
    ears.hints(message)
    assert ears.heard == []
