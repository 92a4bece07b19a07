"""Why a job is not running: each reason from its facts, what else holds beside it, and that one always holds."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqrun.job.explaining import BEHIND_CAP, Facts, Why, explain
from pqrun.job.state import Status

NOW = datetime(2026, 1, 1, tzinfo=UTC)

READY = Facts(
    id=7,
    status=Status.READY,
    job_type="send",
    queue="mail",
    priority=0,
    attempts=0,
    max_attempts=5,
    lost=0,
    last_error=None,
    payload_version=1,
    run_after=NOW,
    locked_at=None,
    locked_by=None,
    finished_at=None,
    cancel_requested_at=None,
    due_in_seconds=-1.0,
    running_seconds=None,
    holder_hostname=None,
    holder_pid=None,
    is_holder_known=False,
    is_holder_dead=False,
    holder_beat_age_seconds=None,
    living=2,
    serving_task=2,
    serving_queue=2,
    serving=2,
    serving_holds=4,
    served_tasks=["pay", "send"],
    served_queues=["default", "mail"],
    newest_version=1,
    before=0,
)
RUNNING: dict[str, Any] = {
    "status": Status.RUNNING,
    "attempts": 1,
    "locked_at": NOW,
    "locked_by": "w",
    "running_seconds": 75.0,
    "is_holder_known": True,
    "holder_hostname": "web-1",
    "holder_pid": 11,
    "holder_beat_age_seconds": 0.5,
}
SOON: dict[str, Any] = {"status": Status.SCHEDULED, "due_in_seconds": 90.0, "run_after": NOW + timedelta(seconds=90)}
ERROR = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: no such card\nwith more'


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        (
            {},
            {
                Why.NEXT: "it is due, and nothing is before it in queue mail; the 2 workers that could run it hold 4 jobs"
            },
        ),
        (
            {"queue_paused_at": NOW, "queue_pause_reason": "provider\ndown", "task_paused_at": NOW, "serving": 1},
            {Why.PAUSED: "its task send is paused since 2026-01-01T00:00:00Z"},
        ),
        (
            {
                "queue_paused_at": NOW,
                "queue_pause_reason": "provider\ndown",
                "before": 1,
                "serving": 1,
                "serving_holds": 1,
            },
            {
                Why.PAUSED: "its queue mail is paused since 2026-01-01T00:00:00Z: provider\\ndown",
                Why.BEHIND: "1 job comes first in queue mail; the 1 worker that could run it holds 1 job",
            },
        ),
        (
            {"before": 1, "serving": 1, "serving_holds": 1},
            {Why.BEHIND: "1 job comes first in queue mail; the 1 worker that could run it holds 1 job"},
        ),
        (
            {"before": BEHIND_CAP + 3},
            {Why.BEHIND: "10,000 or more jobs come first in queue mail; the 2 workers that could run it hold 4 jobs"},
        ),
        (
            {"lost": 1},
            {
                Why.LOST_BEFORE: "1 worker died while it ran: it is claimed alone, by a worker that holds no other unstarted job"
            },
        ),
        (SOON, {Why.NOT_DUE: "it is due in 1m 30s (2026-01-01T00:01:30Z)"}),
        (
            SOON | {"attempts": 2, "last_error": ERROR},
            {
                Why.RETRYING: "attempt 2 of 5 did not succeed, the next is due in 1m 30s (2026-01-01T00:01:30Z): ValueError: no such card"
            },
        ),
        (
            {"living": 0, "serving": 0, "serving_task": 0, "serving_queue": 0},
            {Why.NO_WORKERS: "no worker is alive"},
        ),
        (
            {"serving": 0, "serving_task": 0, "served_tasks": ["pay"]},
            {Why.TASK_NOT_SERVED: "no living worker has the task send; they have pay"},
        ),
        (
            {"serving": 0, "serving_queue": 0, "served_queues": ["default"]},
            {Why.QUEUE_NOT_SERVED: "no living worker serves the queue mail; they serve default"},
        ),
        (
            {"serving": 0, "serving_task": 1, "serving_queue": 1},
            {
                Why.PAIR_NOT_SERVED: "the workers that have the task send do not serve the queue mail, "
                "and those that serve it do not have the task"
            },
        ),
        (
            SOON | {"living": 0, "serving": 0},
            {Why.NO_WORKERS: "no worker is alive", Why.NOT_DUE: "it is due in 1m 30s (2026-01-01T00:01:30Z)"},
        ),
        (
            SOON | {"payload_version": 3, "newest_version": 2},
            {
                Why.NEEDS_NEWER_CODE: "its payload has version 3, and the newest code that a worker has had reads 2",
                Why.NOT_DUE: "it is due in 1m 30s (2026-01-01T00:01:30Z)",
            },
        ),
        (
            {"decode_error": "the stored payload does not satisfy M: n: missing"},
            {
                Why.UNDECODABLE: "this code cannot read its payload: the stored payload does not satisfy M: n: missing",
                Why.NEXT: "it is due, and nothing is before it in queue mail; the 2 workers that could run it hold 4 jobs",
            },
        ),
        (
            RUNNING,
            {
                Why.RUNNING: "it is running on w (host web-1, pid 11) since 1m 15s, attempt 1 of 5; "
                "the worker's last sign of life is 0.5s old"
            },
        ),
        (
            RUNNING | {"cancel_requested_at": NOW},
            {
                Why.CANCEL_REQUESTED: "it is running on w (host web-1, pid 11) since 1m 15s; "
                "its worker was asked to stop it at 2026-01-01T00:00:00Z"
            },
        ),
        (
            RUNNING | {"holder_beat_age_seconds": 40.0},
            {
                Why.HOLDER_STALE: "it was claimed 1m 15s ago by w (host web-1, pid 11), which has given no sign of life for 40s; "
                "another worker will recover it"
            },
        ),
        (
            RUNNING | {"is_holder_dead": True},
            {
                Why.HOLDER_STALE: "it was claimed 1m 15s ago by w (host web-1, pid 11), which was taken for dead; "
                "another worker will recover it"
            },
        ),
        (
            RUNNING | {"is_holder_known": False, "holder_hostname": None},
            {
                Why.HOLDER_STALE: "it was claimed 1m 15s ago by w, which is no longer registered; a worker's sweep will recover it"
            },
        ),
        (
            {"status": Status.FAILED, "finished_at": NOW, "attempts": 5, "last_error": ERROR},
            {Why.FINISHED: "it has FAILED at 2026-01-01T00:00:00Z after attempt 5 of 5: ValueError: no such card"},
        ),
        ({"status": Status.DONE, "finished_at": NOW}, {Why.FINISHED: "it is DONE since 2026-01-01T00:00:00Z"}),
        ({"status": Status.CANCELLED, "finished_at": NOW}, {Why.FINISHED: "it was cancelled at 2026-01-01T00:00:00Z"}),
    ],
)
def test_the_reasons_of_some_facts(change: dict[str, Any], reasons: dict[Why, str]) -> None:
    found = explain(msgspec.structs.replace(READY, **change))
    assert {reason.why: reason.text for reason in found.reasons} == reasons
    assert (found.job_id, found.job_type, found.queue) == (7, "send", "mail")


COUNTS = st.integers(0, 3)


@given(
    status=st.sampled_from(Status),
    due=st.floats(-1e6, 1e6),
    attempts=COUNTS,
    lost=COUNTS,
    before=COUNTS,
    living=COUNTS,
    serving=COUNTS,
    serving_task=COUNTS,
    serving_queue=COUNTS,
    is_holder_known=st.booleans(),
    is_holder_dead=st.booleans(),
    beat_age=st.none() | st.floats(0, 100),
    newest_version=st.none() | COUNTS,
)
def test_whatever_the_facts_there_is_a_reason_on_one_line(status: Status, due: float, **facts: Any) -> None:
    facts["holder_beat_age_seconds"] = facts.pop("beat_age")
    change = {"status": status, "due_in_seconds": due, "finished_at": NOW if status.is_finished else None, **facts}
    found = explain(msgspec.structs.replace(READY, **change))
    assert found.reasons
    assert len({reason.why for reason in found.reasons}) == len(found.reasons)
    assert not [reason.text for reason in found.reasons if "\n" in reason.text]
