"""Renewing: once a second, which of our claims still hold, and which were asked to cancel. It writes nothing and takes no locks.

A claim that does not come back is lost: the executor stops its handler. When the database is away nothing is concluded.
"""

from collections.abc import Sequence
from typing import Protocol

from pqrun.job.policy import LoopErrorPolicy
from pqrun.job.record import Claim
from pqrun.run.events import Events
from pqrun.run.service import Service
from pqrun.store.settling import Renewal

__all__ = ["Held", "Renewals", "Renewer"]

RENEW_SECONDS = 1.0


class Renewals(Protocol):
    """What renewing needs of the store."""

    async def renew(self, claims: Sequence[Claim]) -> Renewal:
        """Ask which claims hold."""
        ...


class Held(Protocol):
    """What renewing needs of the executor."""

    def claims(self) -> list[Claim]:
        """Return the claims in hand that nobody is settling."""
        ...

    def lose(self, claims: Sequence[Claim]) -> None:
        """These are not ours any more (those settled meanwhile are not meant)."""
        ...

    def cancel(self, claims: Sequence[Claim]) -> None:
        """These were asked to cancel."""
        ...


class Renewer:
    """Asks once a second; ``service.wake`` asks at once (a cancel was announced)."""

    def __init__(self, store: Renewals, held: Held, *, events: Events, policy: LoopErrorPolicy) -> None:
        self._store = store
        self._held = held
        self.service = Service("renew", self._tick, events=events, policy=policy)

    async def _tick(self) -> float:
        claims = self._held.claims()
        if claims:
            renewal = await self._store.renew(claims)
            self._held.lose([claim for claim in claims if claim not in renewal.held])
            self._held.cancel(list(renewal.cancelled))
        return RENEW_SECONDS
