"""The proof: what was acknowledged and what really ran, from the logs, held against the rows at the end. No I/O.

Each rule is a function of ``Facts`` that yields what is wrong. What is in doubt, because the answer to a call was lost, may have happened
or not, at any time.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from benchmarks.chaos.facts import Call, Facts, JobFacts
from benchmarks.chaos.log import Told
from pqrun.job.outcome import RELEASES_MAX, SNOOZES_MAX
from pqrun.job.state import FINISHED, Status

__all__ = ["RULES", "Violation", "check"]

NOT_THE_HANDLERS = ("lost its worker ", "released at shutdown ")
"""How the errors begin with which a job ends FAILED through no fault of its handler."""

_STATUS_TOLD = {"Done": Status.DONE, "Failed": Status.FAILED, "JobCancelled": Status.CANCELLED}

_RESOLVED = {"Done", "Retrying", "Failed", "JobCancelled", "Released", "Snoozed", "ClaimLost"}
"""What tells how a claim ended."""


class Violation(NamedTuple):
    """A promise that was not kept."""

    rule: str
    what: str
    job_id: int | None = None
    token: str | None = None


def check(facts: Facts, *, completing: str) -> list[Violation]:
    """All violations; ``completing`` names the task whose handler writes one effect with ``ctx.complete``."""
    found = [violation for rule in RULES for violation in rule(facts)]
    return found + list(_effects(facts, completing))


def _lost(facts: Facts) -> Iterator[Violation]:
    for token, call in facts.calls.items():
        if call.deferred is not None and call.is_acknowledged and not facts.job(call.deferred.job_id).rows:
            yield Violation("lost", "an acknowledged job has no row", call.deferred.job_id, token)


def _misplaced(facts: Facts) -> Iterator[Violation]:
    for job in facts.jobs.values():
        if len(job.rows) > 1:
            yield Violation("two rows", f"one id has {len(job.rows)} rows", job.job_id)
    for token, rows in facts.rows_of.items():
        call = facts.calls.get(token)
        if call is None:
            yield Violation("stranger", "nobody deferred this row", rows[0].job_id, token)
        elif len(rows) > 1:
            yield Violation("two rows", f"one call has written jobs {sorted(row.job_id for row in rows)}", None, token)
        elif call.deferred is not None and (not call.deferred.created or rows[0].job_id != call.deferred.job_id):
            yield Violation("stranger", f"the call was answered otherwise: {call.deferred}", rows[0].job_id, token)


def _stuck(facts: Facts) -> Iterator[Violation]:
    for job in facts.jobs.values():
        for row in job.rows:
            if Status(row.status) not in FINISHED:
                yield Violation("stuck", f"still {row.status} after the load has drained", job.job_id, row.token)


def _rolled_back(facts: Facts) -> Iterator[Violation]:
    for token, call in facts.calls.items():
        if call.is_rolled_back and (facts.rows_of.get(token) or facts.starts_of[token]):
            yield Violation(
                "rolled back", "a job of a transaction that was rolled back is there, or has run", None, token
            )


def _too_many_starts(facts: Facts) -> Iterator[Violation]:
    for job in facts.jobs.values():
        row = job.row
        if row is None:
            continue
        lives = 1 + len(job.retries)
        releases = min(_releases(job), lives * RELEASES_MAX)
        snoozes = min(_snoozes(job).most, lives * SNOOZES_MAX)
        allowed = row.max_attempts * lives + releases + snoozes
        if len(job.starts) > allowed:
            what = (
                f"{len(job.starts)} starts; {row.max_attempts} attempts, {lives} lives, {releases} releases and {snoozes} snoozes "
                f"allow {allowed}"
            )
            yield Violation("too many starts", what, job.job_id, row.token)


def _releases(job: JobFacts) -> int:
    """Claims that were given back after their start, and those of which it is not known since their worker was killed."""
    told = [telling.event for telling in job.told]
    resolved = {event.claim_id for event in told if event.what in _RESOLVED}
    released = {event.claim_id for event in told if (event.what, event.detail) == ("Released", "started")}
    stopped = {event.claim_id for event in told if (event.what, event.detail) == ("StopRequested", "shutdown")}
    return len(released | (stopped - resolved))


class _Snoozes(NamedTuple):
    """How many snoozes were written: those that were told, and those besides whose worker was killed before it could tell."""

    told: int
    most: int


def _snoozes(job: JobFacts) -> _Snoozes:
    told = [telling.event for telling in job.told]
    resolved = {event.claim_id for event in told if event.what in _RESOLVED}
    snoozed = {event.claim_id for event in told if event.what == "Snoozed"}
    raised = {claim_id for claim_id, end in job.ends.items() if end.event.how == "snoozed"}
    return _Snoozes(len(snoozed), len(snoozed | (raised - resolved)))


def _snoozes_miscounted(facts: Facts) -> Iterator[Violation]:
    for job in facts.jobs.values():
        row = job.row
        if row is None or job.retries:  # a retry sets the count to 0
            continue
        told, most = _snoozes(job)
        if not told <= row.snoozes <= most:
            what = f"the row has {row.snoozes} snoozes, the workers told of {told}, and {most} may have been written"
            yield Violation("snoozes", what, job.job_id, row.token)


def _one_claim_two_starts(facts: Facts) -> Iterator[Violation]:
    for job in facts.jobs.values():
        for claim_id, count in Counter(start.event.claim_id for start in job.starts).items():
            if count > 1:
                yield Violation("one claim, two starts", f"claim {claim_id} was started {count} times", job.job_id)


def _status_told(told: Told) -> Status | None:
    if told.what == "Recovered" and Status(told.detail) in FINISHED:
        return Status(told.detail)
    return _STATUS_TOLD.get(told.what)


def _two_outcomes(facts: Facts) -> Iterator[Violation]:
    for job in facts.jobs.values():
        ends = [telling.event for telling in job.told if _status_told(telling.event) is not None]
        if len(ends) > 1 + len(job.retries):
            yield Violation("two outcomes", f"its end was told {len(ends)} times", job.job_id)


def _told_otherwise(facts: Facts) -> Iterator[Violation]:
    for job in facts.jobs.values():
        row = job.row
        if row is None or job.retries:
            continue
        for told in (telling.event for telling in job.told):
            status = _status_told(told)
            if status is not None and (
                status != row.status or (status is Status.DONE and told.claim_id != row.claim_id)
            ):
                what = f"a worker told {told}, the row says {row.status} by claim {row.claim_id}"
                yield Violation("told otherwise", what, job.job_id, row.token)


def _done_without_a_run(facts: Facts) -> Iterator[Violation]:
    for job in facts.jobs.values():
        row = job.row
        if row is None or row.status != Status.DONE:
            continue
        if row.claim_id not in {start.event.claim_id for start in job.starts}:
            yield Violation(
                "no run", f"DONE by claim {row.claim_id}, whose handler has not started", job.job_id, row.token
            )
        call = facts.calls.get(row.token)
        if call is not None and call.deferring.is_blameless:
            end = job.ends.get(row.claim_id or 0)
            if end is None or end.event.how != "returned":
                yield Violation(
                    "no run", f"DONE by claim {row.claim_id}, whose handler has not returned", job.job_id, row.token
                )


def _effects(facts: Facts, completing: str) -> Iterator[Violation]:
    for job in facts.jobs.values():
        row = job.row
        is_done = row is not None and row.job_type == completing and row.status == Status.DONE
        if job.effects != int(is_done):
            said = "has no row" if row is None else f"is {row.status}"
            yield Violation("effects", f"{job.effects} effects of a job that {said}", job.job_id)


def _cancelled(facts: Facts) -> Iterator[Violation]:
    for job in facts.jobs.values():
        row = job.row
        if any(answer.outcome == "NOT_FOUND" for answer in job.cancels):
            yield Violation("lost", "a cancel did not find an acknowledged job", job.job_id)
        if row is None:
            continue
        if row.status == Status.CANCELLED and not job.cancels_asked:
            yield Violation("cancelled", "nobody has cancelled it", job.job_id, row.token)
        asked = [answer.at for answer in job.cancels if answer.outcome in ("CANCELLED", "REQUESTED")]
        is_retried = any(retry.outcome is None or retry.at > max(asked, default=0.0) for retry in job.retries)
        if asked and not is_retried and row.status != Status.CANCELLED:
            yield Violation("cancelled", f"a cancel was acknowledged, and it is {row.status}", job.job_id, row.token)


def _failed_too_soon(facts: Facts) -> Iterator[Violation]:
    for job in facts.jobs.values():
        row = job.row
        if row is None or row.status != Status.FAILED:
            continue
        if row.attempts != row.max_attempts:
            what = f"FAILED after {row.attempts} of {row.max_attempts} attempts"
            yield Violation("failed too soon", what, job.job_id, row.token)
        call = facts.calls.get(row.token)
        if call is not None and call.deferring.is_blameless and not row.error.startswith(NOT_THE_HANDLERS):
            yield Violation("blamed", f"its handler cannot fail, and it is FAILED: {row.error}", job.job_id, row.token)


def _dedupe_answers(facts: Facts) -> Iterator[Violation]:
    for token, call in facts.calls.items():
        if call.deferred is None or call.deferred.created or not call.is_acknowledged:
            continue
        job = facts.job(call.deferred.job_id)
        row = job.row
        if row is not None and (row.job_type, row.key) != (call.deferring.job_type, call.deferring.key):
            yield Violation("dedupe", f"answered by {row.job_type} with key {row.key}", job.job_id, token)
        is_over = any(telling.at < call.at and _status_told(telling.event) for telling in job.told)
        if is_over and not job.retries:
            yield Violation("dedupe", "answered by a job that had ended before", job.job_id, token)


def _two_active_with_one_key(facts: Facts) -> Iterator[Violation]:
    lives: dict[tuple[str, str], list[tuple[float, float, int]]] = defaultdict(list)
    for job in facts.jobs.values():
        if (life := _certain_life(job)) is not None and job.row is not None and job.row.key is not None:
            lives[job.row.job_type, job.row.key].append((*life, job.job_id))
    for (_, key), found in lives.items():
        for before, after in pairwise(sorted(found)):
            if after[0] < before[1]:
                yield Violation(
                    "dedupe", f"jobs {before[2]} and {after[2]} were active with key {key} at once", after[2]
                )


def _certain_life(job: JobFacts) -> tuple[float, float] | None:
    """From when to when it was active for certain: from the answer to its defer until the handler that its end is of has ended."""
    call: Call | None = job.call
    row = job.row
    if call is None or not call.is_acknowledged or call.answered_at is None or row is None or job.retries:
        return None
    end = job.ends.get(row.claim_id or 0)
    if row.status != Status.DONE or not call.deferring.is_blameless or end is None or end.at <= call.answered_at:
        return None
    return call.answered_at, end.at


def _surprises(facts: Facts) -> Iterator[Violation]:
    for error in facts.met:
        yield Violation("surprise", f"what must not be: {error}")
    for one in facts.exits:
        if one.is_last and one.code != 0:
            yield Violation(
                "surprise", f"{one.name} ended with {one.code}, with nothing left to do and the database up"
            )


RULES: tuple[Callable[[Facts], Iterator[Violation]], ...] = (
    _lost,
    _misplaced,
    _stuck,
    _rolled_back,
    _too_many_starts,
    _snoozes_miscounted,
    _one_claim_two_starts,
    _two_outcomes,
    _told_otherwise,
    _done_without_a_run,
    _cancelled,
    _failed_too_soon,
    _dedupe_answers,
    _two_active_with_one_key,
    _surprises,
)
