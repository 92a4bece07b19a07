"""How much is in the queues: measured by one process of all, which alone exports it.

Each process asks for the turn, in one small statement, every ``every_seconds``; who has it measures, and exports gauges for as long as the
turn lasts. So the load does not grow with the fleet, no queue is counted twice in a sum, and where the holder ends another takes over:
at once where it stopped, after TURN_PERIODS periods where it was killed.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from typing import Final

from pqrun.contrib.prometheus.families import Families
from pqrun.errors import PqrunError
from pqrun.job.storable import one_line
from pqrun.store import PgJobStore
from pqrun.store.measuring import leave_turn, measure_queues, take_turn

__all__ = ["QueueMeasurer"]

DUTY: Final = "measure queues"

TURN_PERIODS = 3.0
"""For how many periods a turn is taken: one that is late does not lose it."""

LEAVE_SECONDS = 1.0

_LOGGER = logging.getLogger("pqrun")


class QueueMeasurer:
    """Asks for the turn and measures, until it is cancelled; on the loop of a worker whose store is open."""

    def __init__(self, store: Callable[[], PgJobStore], families: Families, *, every_seconds: float) -> None:
        self._store = store
        self._families = families
        self._every_seconds = every_seconds
        self._holder = secrets.randbits(62)
        self._has_turn = False

    async def run(self) -> None:
        """Measure for as long as the worker runs, and leave the turn to the next."""
        link = self._store().open_link("measure", kept=False)
        try:
            while True:
                asked = time.monotonic()
                seconds = self._every_seconds * TURN_PERIODS
                try:
                    if await take_turn(link, DUTY, self._holder, seconds=seconds):
                        self._has_turn = True
                        self._families.queues.show(await measure_queues(link), asked + seconds)
                        self._families.measured_at.set_to_current_time()
                    else:
                        self._pass()
                        await link.close()  # for others' turns a connection is not kept
                except PqrunError as error:
                    self._families.measure_errors.inc()
                    _LOGGER.debug("the queues could not be measured: %s", one_line(str(error)))
                await asyncio.sleep(self._every_seconds)
        finally:
            self._pass()
            with contextlib.suppress(PqrunError, TimeoutError):
                await asyncio.wait_for(leave_turn(link, DUTY, self._holder), LEAVE_SECONDS)
            await link.close(LEAVE_SECONDS)

    def _pass(self) -> None:
        if self._has_turn:  # else another worker of this process may show what it has measured
            self._has_turn = False
            self._families.queues.hide()
            self._families.measured_at.set(0)
