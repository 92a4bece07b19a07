"""Would the state machine notice? Statements broken on purpose: each must be caught, a survivor is a defect of the test."""

import logging
import sys
from collections.abc import Iterator
from contextlib import suppress

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from pqrun.errors import PqrunError
from pqrun.job import outcome
from pqrun.job.failure import Failure
from pqrun.job.outcome import Counts, Recovered, Retrying
from pqrun.job.record import Claim
from pqrun.run import cursor
from pqrun.run.cursor import TRAIL_SECONDS, Lanes
from pqrun.store import maintaining
from pqrun.store.claiming import Lane
from tests.faults.arena import Arena
from tests.faults.model import Spec
from tests.faults.mutants import MUTANTS, Mutant, break_statement
from tests.faults.rules import StoreMachine
from tests.support.database import Databases, run

log = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds for one call: some mutants wait for ever."""

HUNT = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


NOTICES = (AssertionError, PqrunError, asyncpg.PostgresError, TimeoutError)
"""How a broken statement shows; anything else is a defect of the machine."""


class Caught(BaseException):
    """The machine has noticed. Not an Exception: the search ends here, without a second look at the example."""


class Hunter(StoreMachine):
    """The state machine, ending with the first failure."""

    examples = 0
    noticed: BaseException | None = None

    @classmethod
    def start_in(cls, arena: Arena) -> None:
        cls.arena, cls.examples, cls.noticed = arena, 0, None

    def teardown(self) -> None:
        Hunter.examples += 1
        error = sys.exc_info()[1]
        try:
            super().teardown()
        except NOTICES as failure:
            error = failure
        if isinstance(error, NOTICES):
            Hunter.noticed = error
            raise Caught from error


@pytest.fixture(scope="module")
def arena(databases: Databases) -> Iterator[Arena]:
    dsn = run(databases.clone())
    with Arena(dsn, patience=PATIENCE) as opened:
        yield opened
    run(databases.drop(dsn))


def hunt(arena: Arena) -> None:
    """Fail if nothing notices. Who wants to know what did: ``--log-cli-level=INFO``."""
    Hunter.start_in(arena)
    with suppress(
        Caught, Flaky
    ):  # Flaky: it began as another example, which had gone on, because a race went the other way
        run_state_machine_as_test(Hunter, settings=HUNT)
    assert Hunter.noticed is not None, f"survived {Hunter.examples} examples"
    log.info("caught after %d examples: %s: %s", Hunter.examples, type(Hunter.noticed).__name__, Hunter.noticed)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "_"))
def test_a_broken_statement_is_caught(arena: Arena, mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = arena.store.statements
    texts = {name: statements[name] for name in statements.names()}
    texts[mutant.statement] = break_statement(texts[mutant.statement], mutant)
    monkeypatch.setattr(statements, "_texts", texts)
    hunt(arena)


def test_a_recovery_that_ignores_max_attempts_is_caught(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(claim: Claim, counts: Counts, *, worker: str) -> Recovered:
        return Recovered(claim, f"lost its worker once (last: {worker})")

    monkeypatch.setattr(maintaining, "decide_lost", decide)
    hunt(arena)


def test_a_failure_that_ignores_max_attempts_is_caught(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(
        claim: Claim, counts: Counts, *, error: str, failure: Failure, delay_seconds: float, duration_ms: int | None
    ) -> Retrying:
        return Retrying(claim, duration_ms, error, delay_seconds, failure)

    monkeypatch.setattr(outcome, "decide_after_failure", decide)
    hunt(arena)


def test_releases_without_a_bound_are_caught(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "RELEASES_MAX", 1_000_000)
    hunt(arena)


def test_snoozes_without_a_bound_are_caught(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "SNOOZES_MAX", 1_000_000)
    hunt(arena)


def late_commit_is_found(arena: Arena) -> bool:
    """Whether a claim with a cursor finds a job whose transaction took its place before another's, and committed after it was claimed."""
    arena.call(arena.empty())
    lane, now = Lane("default", 0), 10.0
    lanes = Lanes(None)
    lanes.add([lane])
    arena.call(arena.register(0))

    def claim(at: float) -> list[int]:
        work, boundaries = arena.slots[0].work, lanes.boundaries(at, from_start=False)
        batch = arena.call(work.claim(boundaries, ["a"], ["a"], [], limit=1, look=10, free=1))
        lanes.looked(batch.looks, at)
        return [job.id for job in batch.jobs]

    arena.call(arena.handler.execute("BEGIN"))
    late = arena.call(arena.enqueue_by_function(Spec(1), within=True)).id
    early = [arena.call(arena.enqueue_by_function(Spec(n), within=False)).id for n in (2, 3)]
    assert claim(now) == early[:1]
    arena.call(arena.handler.execute("COMMIT"))
    return claim(now + TRAIL_SECONDS / 2) == [late]


def test_a_cursor_without_its_trailing_is_caught(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    assert late_commit_is_found(arena)
    monkeypatch.setattr(cursor, "TRAIL_SECONDS", 0.0)
    assert not late_commit_is_found(arena)
