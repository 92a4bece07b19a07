"""Logs as JSON."""

import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from pqrun.contrib.jsonlog import JsonFormatter
from pqrun.run import events
from pqrun.run.context import JobLogger
from pqrun.run.journal import Journal
from tests.run.making import SECRET, make_job


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    @property
    def last(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.lines[-1])
        return loaded


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def logger(kept: Kept) -> Iterator[logging.Logger]:
    logger = logging.getLogger("test of jsonlog")
    logger.addHandler(kept)
    yield logger
    logger.removeHandler(kept)


def test_an_event_is_told_with_its_fields_and_its_job_without_payload(kept: Kept, logger: logging.Logger) -> None:
    Journal(logger)(events.Retrying(make_job(attempts=2, queue="mail"), "ValueError: x", 60.0, 12))
    told = kept.last
    assert told["message"].startswith("failed t id=1 attempt=2/5, next try in 60 s")
    assert datetime.fromisoformat(told.pop("time")).utcoffset() is not None
    del told["message"]
    assert told == {
        "level": "WARNING",
        "logger": "test of jsonlog",
        "event": "Retrying",
        "error": "ValueError: x",
        "delay_seconds": 60.0,
        "duration_ms": 12,
        "job_id": 1,
        "job_type": "t",
        "queue": "mail",
        "attempt": 2,
        "max_attempts": 5,
    }
    assert SECRET not in kept.lines[-1]


def test_jobs_of_a_blocked_loop_are_their_ids(kept: Kept, logger: logging.Logger) -> None:
    Journal(logger)(events.LoopBlocked(2.5, "file.py:1\n", None, (make_job(3), make_job(4))))
    assert (kept.last["running"], kept.last["seconds"]) == ([3, 4], 2.5)
    assert SECRET not in kept.lines[-1]


def test_what_a_handler_logs_names_its_job_and_its_own_extras(kept: Kept) -> None:
    named = JobLogger(make_job(9, queue="mail"))
    named.logger.addHandler(kept)
    try:
        named.warning("halfway", extra={"user_id": 7, "share": float("nan"), "thing": object()})
    finally:
        named.logger.removeHandler(kept)
    told = kept.last
    assert [told[name] for name in ("job_id", "job_type", "queue", "attempt", "user_id", "share")] == [
        9,
        "t",
        "mail",
        1,
        7,
        "nan",
    ]
    assert "thing" not in told


def test_a_message_is_one_line_whatever_it_holds() -> None:
    text = "a\nb\x1b[31m " + chr(0xD83D) + chr(0x2028)  # the last but one is half of a character
    record = logging.LogRecord("pqrun", logging.ERROR, "", 0, "%s", (text,), None)
    record.level = "not a level"
    line = JsonFormatter().format(record)
    assert len(line.splitlines()) == 1
    assert (json.loads(line)["message"] == text, json.loads(line)["level"]) == (True, "ERROR")


def test_an_exception_is_a_field(kept: Kept, logger: logging.Logger) -> None:
    try:
        raise ValueError("x")
    except ValueError:
        logger.error("oops", exc_info=sys.exc_info())
    assert kept.last["exception"].endswith("ValueError: x")
