"""The log: one physical line per event, names escaped, no payload."""

import logging
import typing
from collections.abc import Callable

import pytest

from pqrun.run import events
from pqrun.run.events import Event
from pqrun.run.journal import Journal
from tests.run.making import SECRET, make_job
from tests.support.jobs import NOW

HOSTILE = "a\r\n2026-01-01 ERROR forged\x1b[31m\u2028\u202e\x00%s%(x)d"
JOB = make_job(7, job_type=HOSTILE)

MADE: dict[type, Event] = {
    type(event): event
    for event in (
        events.Picked(JOB),
        events.Done(JOB, 12),
        events.Retrying(JOB, "ValueError: x", 60.0),
        events.Failed(JOB, "ValueError: x"),
        events.JobCancelled(JOB),
        events.Released(JOB, started=True),
        events.Snoozed(JOB, 15.0, 3, "the bank is closed"),
        events.PutAside(JOB, 15.0),
        events.NeedsNewerCode(HOSTILE, 3, 2, 7),
        events.Recovered(7, HOSTILE, HOSTILE, "READY", "lost its worker once", "default", True),
        events.ClaimLost(JOB),
        events.StopRequested(JOB, "timeout"),
        events.LateReturn(JOB),
        events.ThreadsExhausted(3),
        events.Unserved(HOSTILE, HOSTILE),
        events.WorkerDied(HOSTILE),
        events.Pruned(5),
        events.Fired(HOSTILE, NOW, 2, 7),
        events.FiringSkipped(HOSTILE, NOW, "overlap"),
        events.FiringsMissed(HOSTILE, NOW, "one", 1),
        events.ScheduleChanged(HOSTILE, "new"),
        events.ScheduleFailed(HOSTILE, "StoreError: x"),
        events.ScheduleOrphaned(HOSTILE),
        events.ScheduleTaken(HOSTILE),
        events.LoopBlocked(6.1, "File x\nline 2", JOB, (JOB,)),
        events.LoopFailed("fetch", "gone", 1, 0.1),
        events.LoopResumed("fetch", 3, 1.5),
        events.WorkerStarted(HOSTILE, 3, (HOSTILE, "t")),
        events.WorkerStopping(HOSTILE, "cancel", 2),
        events.WorkerStopped(HOSTILE, clean=False),
    )
}


def line_of(event: Event, caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="pqrun"):
        Journal()(event)
    (record,) = caplog.records
    return record


def test_every_member_of_the_union_is_tried_here() -> None:
    assert set(MADE) == set(typing.get_args(Event))


@pytest.mark.parametrize("kind", typing.get_args(Event), ids=lambda kind: str(kind.__name__))
def test_each_event_has_a_line_of_its_own_which_is_one_physical_line(
    kind: type, caplog: pytest.LogCaptureFixture
) -> None:
    text = line_of(MADE[kind], caplog).getMessage()
    assert text.isprintable()
    assert SECRET not in text
    assert text != kind.__name__  # that is what an event without a line of its own would say
    assert "forged" not in text or "a\\r\\n2026-01-01 ERROR forged\\x1b[31m\\u2028\\u202e\\x00%s%(x)d" in text


@pytest.mark.parametrize("kind", [k for k in MADE if "job" in k.__struct_fields__], ids=lambda kind: str(kind.__name__))  # type: ignore[attr-defined]  # Structs
def test_each_event_about_a_job_names_it(kind: type, caplog: pytest.LogCaptureFixture) -> None:
    assert "id=7 attempt=1/5" in line_of(MADE[kind], caplog).getMessage()


def test_trouble_is_a_warning_and_a_job_that_failed_for_good_an_error(caplog: pytest.LogCaptureFixture) -> None:
    levels = {kind: line_of(event, caplog).levelno for kind, event in MADE.items()}
    assert (
        levels.pop(events.PutAside) == logging.DEBUG
    )  # it may come round many times; the first of its kind is a warning
    assert levels.pop(events.Failed) == logging.ERROR
    quiet = {events.Picked, events.Done, events.JobCancelled, events.Released, events.StopRequested, events.Pruned}
    quiet |= {events.Snoozed, events.Fired, events.FiringSkipped, events.ScheduleChanged}
    quiet |= {events.LoopResumed, events.WorkerStarted, events.WorkerStopping, events.WorkerStopped}
    assert {kind for kind, level in levels.items() if level == logging.INFO} == quiet
    assert {level for kind, level in levels.items() if kind not in quiet} == {logging.WARNING}


def test_errors_in_a_row_are_one_warning_and_a_line_for_each_that_says_something_new(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = Journal()
    errors = ["gone", "refused", *["refused", "gone"] * 5, "starting up", *(f"odd {n}" for n in range(20))]
    with caplog.at_level(logging.DEBUG, logger="pqrun"):
        for duty in ("keep", "fetch"):
            for number, error in enumerate(errors, 1):
                journal(events.LoopFailed(duty, error, number, 0.1))
    for duty in ("keep", "fetch"):
        told = [
            (r.levelname, r.getMessage().rpartition(": ")[2]) for r in caplog.records if r.getMessage().startswith(duty)
        ]
        assert len(told) == len(errors)
        assert [row for row in told if row[0] != "DEBUG"] == [
            ("WARNING", "gone"),
            *(("INFO", error) for error in ("refused", "starting up", "odd 0", "odd 1")),
        ]


def test_the_next_errors_of_a_duty_warn_anew(caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal()
    with caplog.at_level(logging.INFO, logger="pqrun"):
        for _ in range(2):
            journal(events.LoopFailed("keep", "gone", 1, 0.0))
            journal(events.LoopFailed("keep", "gone", 2, 0.1))
            journal(events.LoopResumed("keep", 2, 0.3))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2


def test_where_the_level_is_off_no_line_is_made(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, logger="pqrun"):
        for event in MADE.values():
            Journal()(event)
    assert len(caplog.records) == 1


def test_lines_can_go_to_a_logger_of_the_users(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="mine"):
        Journal(logging.getLogger("mine"))(events.Pruned(5))
    assert [(r.name, r.getMessage()) for r in caplog.records] == [("mine", "retention removed 5 finished jobs")]


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (events.LoopBlocked(6.1, "", None, (JOB,)), "blocked for 6.1 s by a handler"),
        (events.Released(JOB, started=True), "after its start"),
        (events.Released(JOB, started=False), "before its start"),
        (events.WorkerStopped("w", clean=True), "worker w stopped"),
        (events.WorkerStopped("w", clean=False), "not written in time"),
        (events.StopRequested(JOB, "claim_lost"), "claim_lost"),
        (events.Fired("s", NOW, 1, 7), "schedule s fired for 2026-01-01T00:00:00+00:00: job 7"),
        (events.Fired("s", NOW, 3, 7), ": job 7, 3 jobs"),
        (events.FiringSkipped("s", NOW, "overlap"), "its last job is still active"),
        (events.FiringSkipped("s", NOW, "dedupe"), "an active job has its dedupe key"),
    ],
)
def test_a_line_says_what_matters(event: Event, words: str, caplog: pytest.LogCaptureFixture) -> None:
    assert line_of(event, caplog).getMessage().endswith(words) or words in line_of(event, caplog).getMessage()


def test_a_journal_is_a_subscriber() -> None:
    subscriber: Callable[[Event], None] = Journal()
    assert callable(subscriber)
