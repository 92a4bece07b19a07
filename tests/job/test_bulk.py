"""What is refused and why, for every action and every state; and the bounds of a report."""

import pytest

from pqrun.errors import OptionError
from pqrun.job.bulk import (
    IDS_KEPT,
    Action,
    Refusal,
    RefusalReason,
    Seen,
    Tally,
    cancelling,
    deleting,
    moving,
    prioritizing,
    refusal_reason,
    retrying,
)
from pqrun.job.state import Status

TABLE = {
    "cancel": (cancelling(), "- - - already_finished already_finished already_finished"),
    "retry": (retrying(force=False), "waiting waiting running is_done - -"),
    "retry by force": (retrying(force=True), "waiting waiting running - - -"),
    "delete": (deleting(waiting=False), "waiting waiting running - - -"),
    "delete waiting": (deleting(waiting=True), "- - running - - -"),
    "move": (moving("q"), "- - running already_finished already_finished already_finished"),
    "prioritize": (prioritizing(1), "- - running already_finished already_finished already_finished"),
}
"""Per action: SCHEDULED, READY, RUNNING, DONE, FAILED, CANCELLED; a dash where it is done."""


@pytest.mark.parametrize(("action", "told"), TABLE.values(), ids=TABLE)
def test_each_state_is_taken_or_refused_for_its_reason(action: Action, told: str) -> None:
    reasons = [refusal_reason(action, list(Status), Seen(status, None)) for status in Status]
    assert " ".join("-" if reason is None else reason.value for reason in reasons) == told
    assert [reason is None for reason in reasons] == [status in action.takes for status in Status]


def test_what_is_not_there_is_not_found() -> None:
    assert refusal_reason(cancelling(), list(Status), None) is RefusalReason.NOT_FOUND


def test_what_has_left_the_states_that_were_asked_for_has_changed() -> None:
    assert refusal_reason(cancelling(), [Status.READY], Seen(Status.RUNNING, None)) is RefusalReason.CHANGED
    assert refusal_reason(cancelling(), [Status.READY], Seen(Status.DONE, None)) is RefusalReason.ALREADY_FINISHED


def test_a_key_that_is_taken_is_in_the_way_of_a_retry_alone() -> None:
    seen = Seen(Status.FAILED, 7)
    assert refusal_reason(retrying(force=False), list(Status), seen) is RefusalReason.KEY_TAKEN
    assert refusal_reason(deleting(waiting=False), list(Status), seen) is None


def test_a_report_counts_all_and_names_the_first() -> None:
    tally = Tally()
    for start in range(0, 3 * IDS_KEPT, 600):
        tally.did(range(start, start + 600), requested=1)
    for job_id in range(2 * IDS_KEPT):
        tally.refuse(Refusal(job_id, RefusalReason.RUNNING if job_id % 2 else RefusalReason.BUSY))
    report = tally.report(cancelling(), dry_run=False)
    assert (report.matched, report.done, report.requested, report.refused) == (
        5 * IDS_KEPT,
        3 * IDS_KEPT,
        5,
        2 * IDS_KEPT,
    )
    assert report.done_ids == tuple(range(IDS_KEPT))
    assert [refusal.id for refusal in report.refusals] == list(range(IDS_KEPT))
    assert report.reasons == {RefusalReason.RUNNING: IDS_KEPT, RefusalReason.BUSY: IDS_KEPT}
    assert not report.is_complete


@pytest.mark.parametrize("queue", ["", 7, "a\x00"])
def test_an_impossible_queue_is_refused(queue: object) -> None:
    with pytest.raises(OptionError, match=r"^queue: "):
        moving(queue)


def test_an_impossible_priority_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^priority: "):
        prioritizing(2**15)
