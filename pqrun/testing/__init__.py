"""Tests of applications that use pqrun: run what is due, look at what was deferred, move the clock, break things.

The pytest fixtures ``pqrun_server``, ``pqrun_dsn`` and ``pqrun_bind`` come with the installation and cost nothing where they are not used.
Nothing here is on its way into production code; payloads are shown in messages, as tests need them.
::

    async def test_a_new_user_is_welcomed(pqrun_bind: Bind) -> None:
        async with pqrun_bind(jobs):
            await sign_up("ann@example.org")
            await assert_enqueued(send_email, user_id=1)
            report = await drain(jobs)
            assert report.counts == {"send_email": 1}
"""

from pqrun.testing.advancing import advance, advance_sync
from pqrun.testing.binding import Bind
from pqrun.testing.databases import Databases
from pqrun.testing.draining import drain, drain_sync
from pqrun.testing.expecting import (
    assert_enqueued,
    assert_enqueued_sync,
    assert_not_enqueued,
    assert_not_enqueued_sync,
    enqueued,
    enqueued_sync,
)
from pqrun.testing.faults import drop_connections, fail_attempt, lose_worker
from pqrun.testing.inline import InlineJobs, inline
from pqrun.testing.report import DrainFailed, DrainReport, DrainStopped, Ran, Waiting

__all__ = [
    "Bind",
    "Databases",
    "DrainFailed",
    "DrainReport",
    "DrainStopped",
    "InlineJobs",
    "Ran",
    "Waiting",
    "advance",
    "advance_sync",
    "assert_enqueued",
    "assert_enqueued_sync",
    "assert_not_enqueued",
    "assert_not_enqueued_sync",
    "drain",
    "drain_sync",
    "drop_connections",
    "enqueued",
    "enqueued_sync",
    "fail_attempt",
    "inline",
    "lose_worker",
]
