"""A worker notes, once, what the payloads of its tasks look like: what ``pqrun check`` compares the next code with.

It is told to the database behind the worker's start and delays nothing; a role that may not write the table is told of once.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import Final, Protocol

import msgspec

from pqrun.errors import StoreError
from pqrun.job.policy import LoopErrorPolicy
from pqrun.run.events import Events
from pqrun.run.handler import Handler
from pqrun.run.service import Service
from pqrun.store.checking import Noted

__all__ = ["ShapeNote", "Shapes"]

IDLE_SECONDS = 86_400.0
"""Once it is written there is nothing more to do."""

NOT_ALLOWED: Final = "42501"

_LOGGER = logging.getLogger("pqrun")


class Shapes(Protocol):
    """What noting needs of the store."""

    async def note_shapes(self, shapes: Iterable[Noted]) -> None:
        """Keep them."""
        ...


class ShapeNote:
    """See the module's docstring."""

    def __init__(
        self, store: Shapes, handlers: Collection[Handler], *, events: Events, policy: LoopErrorPolicy
    ) -> None:
        self._store = store
        self._handlers = handlers
        self._is_noted = False
        self.service = Service("note shapes", self._tick, events=events, policy=policy)

    async def _tick(self) -> float:
        if not self._is_noted:
            await self._note()
            self._is_noted = True
        return IDLE_SECONDS

    async def _note(self) -> None:
        noted: list[Noted] = []
        for handler in self._handlers:
            shape = None if handler.shape is None else handler.shape()
            if shape is not None and handler.version is not None:
                noted.append(Noted(handler.job_type, handler.version, msgspec.json.encode(shape).decode()))
            await asyncio.sleep(0)  # each takes about a millisecond
        if not noted:
            return
        try:
            await self._store.note_shapes(noted)
        except StoreError as error:
            if error.sqlstate != NOT_ALLOWED:
                raise
            _LOGGER.info("the shapes of payloads are not noted for 'pqrun check': %s", error)
