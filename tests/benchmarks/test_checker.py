"""The checker of the chaos run catches each violation, in logs made by hand, and nothing in logs without one."""

from typing import Any, NamedTuple

import pytest

from benchmarks.chaos.checker import RULES, check
from benchmarks.chaos.facts import Row, gather
from benchmarks.chaos.log import (
    CancelAnswered,
    CancelAsked,
    Committed,
    Deferred,
    Deferring,
    Ended,
    Entry,
    Event,
    Exited,
    FaultBegan,
    Met,
    RetryAnswered,
    RetryAsked,
    RolledBack,
    Started,
    Told,
)
from benchmarks.chaos.report import story

JOB = 1
CLAIM = 10


class Case(NamedTuple):
    """What the processes logged, in this order, and what was found in the end."""

    events: list[Event]
    rows: list[Row]
    effects: list[int]

    def entries(self) -> list[Entry]:
        return [Entry(float(at), "p", event) for at, event in enumerate(self.events)]

    def rules(self) -> set[str]:
        return {v.rule for v in check(gather(self.entries(), self.rows, self.effects), completing="complete")}


def row(job_id: int = JOB, **changes: Any) -> Row:
    found = Row(job_id, "quick", f"t{job_id}", "DONE", 1, 3, CLAIM + job_id - 1)
    return found._replace(**changes)


def deferred(job_id: int = JOB, **changes: object) -> list[Event]:
    options: dict[str, object] = {"is_blameless": True, **changes}
    deferring = Deferring(f"t{job_id}", "quick", 3, **options)  # type: ignore[arg-type]  # the tests name what differs
    return [deferring, Deferred(f"t{job_id}", job_id, created=True)]


def run(job_id: int = JOB, claim_id: int | None = None, how: str = "returned") -> list[Event]:
    claim = CLAIM + job_id - 1 if claim_id is None else claim_id
    return [Started(f"t{job_id}", job_id, claim, 7), Ended(f"t{job_id}", job_id, claim, how)]


def told(what: str, detail: str = "", claim_id: int = CLAIM) -> Event:
    return Told(what, JOB, claim_id, detail)


CANCELLED: list[Event] = [CancelAsked(JOB), CancelAnswered(JOB, "CANCELLED")]
RETRIED: list[Event] = [RetryAsked(JOB), RetryAnswered(JOB, accepted=True)]


def starts(count: int) -> list[Event]:
    return [event for claim in range(CLAIM + 1 - count, CLAIM + 1) for event in run(claim_id=claim)]


KEPT: dict[str, Case] = {
    "done": Case([*deferred(), *run(), told("Done")], [row()], []),
    "in doubt and not there": Case(deferred()[:1], [], []),
    "in doubt and there": Case([*deferred()[:1], *run()], [row()], []),
    "rolled back": Case([*deferred(batch="b"), RolledBack("b")], [], []),
    "a transaction in doubt": Case(deferred(batch="b"), [], []),
    "committed": Case([*deferred(batch="b"), Committed("b"), *run()], [row()], []),
    "as many starts as attempts": Case([*deferred(), *starts(3)], [row(attempts=3)], []),
    "one more for a release": Case(
        [*deferred(), *starts(4), told("Released", "started", CLAIM - 1)], [row(attempts=3)], []
    ),
    "one more for a release that was not told": Case(
        [*deferred(), told("StopRequested", "shutdown", CLAIM - 1), *starts(4)], [row(attempts=3)], []
    ),
    "one more for a snooze": Case(
        [*deferred(), *run(claim_id=7, how="snoozed"), told("Snoozed", claim_id=7), *starts(3)],
        [row(attempts=3, snoozes=1)],
        [],
    ),
    "one more for a snooze that was not told": Case(
        [*deferred(), *run(claim_id=7, how="snoozed"), *starts(3)], [row(attempts=3, snoozes=1)], []
    ),
    "a snooze that was not written": Case(
        [*deferred(), *run(claim_id=7, how="snoozed"), *run()], [row(attempts=2)], []
    ),
    "as many again after a retry": Case([*deferred(), *starts(3), *RETRIED, *run(claim_id=99)], [row(claim_id=99)], []),
    "cancelled": Case([*deferred(), *CANCELLED], [row(status="CANCELLED", claim_id=None)], []),
    "cancelled and retried": Case([*deferred(), *CANCELLED, *RETRIED, *run()], [row()], []),
    "a retry in doubt": Case([*deferred(), RetryAsked(JOB), *CANCELLED, *run()], [row()], []),
    "completed": Case([*deferred(is_blameless=False), Started("t1", JOB, CLAIM, 7)], [row(job_type="complete")], [JOB]),
    "failed": Case(
        [*deferred(is_blameless=False), *run(how="raised")], [row(status="FAILED", attempts=3, error="ValueError")], []
    ),
    "failed by lost workers": Case(deferred(), [row(status="FAILED", attempts=3, error="lost its worker 3 times")], []),
    "a duplicate": Case(
        [*deferred(key="k"), Deferring("t2", "quick", 3, key="k"), Deferred("t2", JOB, created=False), *run()],
        [row(key="k")],
        [],
    ),
    "one key after the other": Case(
        [*deferred(key="k"), *run(), *deferred(2, key="k"), *run(2)], [row(key="k"), row(2, key="k")], []
    ),
    "a worker that ended in the middle": Case([Exited("w", 1)], [], []),
}

VIOLATED: dict[str, tuple[str, Case]] = {
    "an acknowledged job is gone": ("lost", Case(deferred(), [], [])),
    "a committed job is gone": ("lost", Case([*deferred(batch="b"), Committed("b")], [], [])),
    "the job that answered a duplicate is gone": (
        "lost",
        Case([Deferring("t2", "quick", 3, key="k"), Deferred("t2", JOB, created=False)], [], []),
    ),
    "a cancel does not find it": (
        "lost",
        Case([*deferred(), *run(), CancelAsked(JOB), CancelAnswered(JOB, "NOT_FOUND")], [row()], []),
    ),
    "an id is there twice": ("two rows", Case([*deferred(), *run()], [row(), row()], [])),
    "a call has written two jobs": (
        "two rows",
        Case([*deferred()[:1], *run(), *run(2)], [row(), row(2, token="t1")], []),
    ),
    "nobody deferred it": ("stranger", Case(run(), [row()], [])),
    "a duplicate has written a row": (
        "stranger",
        Case([*deferred()[:1], Deferred("t1", 2, created=False), *run()], [row(), row(2, token="t2")], []),
    ),
    "still waiting": ("stuck", Case(deferred(), [row(status="READY", claim_id=None)], [])),
    "still running": ("stuck", Case([*deferred(), *run()], [row(status="RUNNING")], [])),
    "rolled back and there": ("rolled back", Case([*deferred(batch="b"), RolledBack("b"), *run()], [row()], [])),
    "rolled back and run": ("rolled back", Case([*deferred(batch="b"), RolledBack("b"), *run()], [], [])),
    "more starts than attempts": ("too many starts", Case([*deferred(), *starts(4)], [row(attempts=3)], [])),
    "a snooze whose claim was lost allows none": (
        "too many starts",
        Case(
            [*deferred(), *run(claim_id=7, how="snoozed"), told("ClaimLost", claim_id=7), *starts(3)],
            [row(attempts=3)],
            [],
        ),
    ),
    "a snooze was told and not counted": (
        "snoozes",
        Case([*deferred(), *run(claim_id=7, how="snoozed"), told("Snoozed", claim_id=7), *run()], [row()], []),
    ),
    "a snooze was counted that no handler chose": ("snoozes", Case([*deferred(), *run()], [row(snoozes=1)], [])),
    "a release before the start allows none": (
        "too many starts",
        Case([*deferred(), *starts(4), told("Released", "unstarted", CLAIM - 1)], [row(attempts=3)], []),
    ),
    "a stop that ended otherwise allows none": (
        "too many starts",
        Case([*deferred(), *starts(4), told("StopRequested", "shutdown"), told("Done")], [row(attempts=3)], []),
    ),
    "more releases than count": (
        "too many starts",
        Case(
            [*deferred(), *starts(14), *(told("Released", "started", CLAIM - n) for n in range(11))],
            [row(attempts=3)],
            [],
        ),
    ),
    "a refused retry allows none": (
        "too many starts",
        Case([*deferred(), RetryAsked(JOB), RetryAnswered(JOB, accepted=False), *starts(4)], [row(attempts=3)], []),
    ),
    "a claim is started twice": ("one claim, two starts", Case([*deferred(), *run(), *run()], [row()], [])),
    "two workers told its end": ("two outcomes", Case([*deferred(), *run(), told("Done"), told("Done")], [row()], [])),
    "a reaper told its end too": (
        "two outcomes",
        Case([*deferred(), *run(), told("Done"), Told("Recovered", JOB, None, "FAILED")], [row()], []),
    ),
    "told done and failed": (
        "told otherwise",
        Case([*deferred(), *run(), told("Done")], [row(status="FAILED", attempts=3, error="lost its worker ")], []),
    ),
    "told done by another claim": ("told otherwise", Case([*deferred(), *run(), told("Done", claim_id=9)], [row()], [])),
    "done and not started": ("no run", Case([*deferred(), told("Done")], [row()], [])),
    "done and not returned": ("no run", Case([*deferred(), *run()[:1]], [row()], [])),
    "done and raised": ("no run", Case([*deferred(), *run(how="raised")], [row()], [])),
    "done by a claim that did not run": ("no run", Case([*deferred(), *run(claim_id=9)], [row()], [])),
    "an effect is missing": (
        "effects",
        Case([*deferred(is_blameless=False), *run()], [row(job_type="complete")], []),
    ),
    "an effect happened twice": (
        "effects",
        Case([*deferred(is_blameless=False), *run()], [row(job_type="complete")], [JOB, JOB]),
    ),
    "an effect of a job that failed": (
        "effects",
        Case(
            [*deferred(is_blameless=False), *run()],
            [row(job_type="complete", status="FAILED", attempts=3, error="ValueError")],
            [JOB],
        ),
    ),
    "an acknowledged cancel has no effect": ("cancelled", Case([*deferred(), *CANCELLED, *run()], [row()], [])),
    "a retry before the cancel excuses nothing": (
        "cancelled",
        Case([*deferred(), *RETRIED, *CANCELLED, *run()], [row()], []),
    ),
    "nobody has cancelled it": ("cancelled", Case(deferred(), [row(status="CANCELLED", claim_id=None)], [])),
    "failed with attempts left": (
        "failed too soon",
        Case([*deferred(), *run()], [row(status="FAILED", attempts=2, error="lost its worker 2 times")], []),
    ),
    "failed for an error that is not its own": (
        "blamed",
        Case([*deferred(), *run()], [row(status="FAILED", attempts=3, error="DatabaseUnavailableError: x")], []),
    ),
    "a duplicate is answered by another key": (
        "dedupe",
        Case([*deferred(key="k"), Deferring("t2", "quick", 3, key="x"), Deferred("t2", JOB, created=False), *run()], [row(key="k")], []),
    ),
    "a duplicate is answered by a job that had ended": (
        "dedupe",
        Case(
            [*deferred(key="k"), *run(), told("Done"), Deferring("t2", "quick", 3, key="k"), Deferred("t2", JOB, created=False)],
            [row(key="k")],
            [],
        ),
    ),
    "two with one key at once": (
        "dedupe",
        Case([*deferred(key="k"), *deferred(2, key="k"), *run(), *run(2)], [row(key="k"), row(2, key="k")], []),
    ),
    "a producer met what nobody named": ("surprise", Case([Met("KeyError: x")], [], [])),
    "a worker ended badly": ("surprise", Case([Exited("w", 1, is_last=True)], [], [])),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_is_right_is_not_a_violation(name: str) -> None:
    assert KEPT[name].rules() == set()


@pytest.mark.parametrize("name", VIOLATED)
def test_each_violation_is_caught(name: str) -> None:
    rule, case = VIOLATED[name]
    assert rule in case.rules()


def test_no_rule_is_without_a_log_that_it_alone_judges() -> None:
    for rule in RULES:
        assert any([*rule(gather(case.entries(), case.rows, case.effects))] for _, case in VIOLATED.values()), rule


def test_the_story_of_a_violation_is_all_that_is_known_of_its_job_and_the_faults_meanwhile() -> None:
    fault = FaultBegan(1, "kill", "one worker")
    case = Case([*deferred(), *deferred(2), fault, *run(), *run(2)], [row(status="RUNNING"), row(2)], [])
    facts = gather(case.entries(), case.rows, case.effects)
    (violation,) = [v for v in check(facts, completing="complete") if v.rule == "stuck"]
    told = story(case.entries(), facts, violation)
    assert [line.split()[2].partition("(")[0] for line in told[:-1]] == [
        "Deferring",
        "Deferred",
        "FaultBegan",
        "Started",
        "Ended",
    ]
    assert told[-1] == str(row(status="RUNNING"))
