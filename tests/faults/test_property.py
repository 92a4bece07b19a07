"""The store does what the model of a job says, whatever is called in whatever order: a stateful property test."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.faults.arena import Arena
from tests.faults.rules import machine_in
from tests.support.database import Databases, run

PATIENCE = 20.0
"""Seconds for one call: only what hangs takes so long."""

UNHURRIED = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def arena(databases: Databases) -> Iterator[Arena]:
    dsn = run(databases.clone())
    with Arena(dsn, patience=PATIENCE) as opened:
        yield opened
    run(databases.drop(dsn))


def test_the_store_does_what_the_model_says_in_any_order(arena: Arena) -> None:
    """The same examples each time, so that a red run is about the change."""
    profile = settings(UNHURRIED, max_examples=40, stateful_step_count=40, derandomize=True)
    run_state_machine_as_test(machine_in(arena), settings=profile)


@pytest.mark.slow
def test_the_store_does_what_the_model_says_in_many_orders_never_tried_before(arena: Arena) -> None:
    profile = settings(UNHURRIED, max_examples=300, stateful_step_count=60, print_blob=True)
    run_state_machine_as_test(machine_in(arena), settings=profile)
