"""What one mounted set of pages is made of: whose jobs it shows, its rules, and how it comes to an open store."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from jinja2 import Environment

from pqrun.app import App
from pqrun.errors import ConfigurationError
from pqrun.job.record import JsonValue
from pqrun.store import PgJobStore
from pqrun.task import Task
from pqrun.web.access import ACTIONS, Access, Authorize, Role
from pqrun.web.defence import Tokens

__all__ = ["Part", "Redact", "Rules", "Site"]

Part: TypeAlias = Literal["payload", "result", "error"]

Redact: TypeAlias = Callable[[str, Part, JsonValue], JsonValue]
"""Called with job_type, part and value (an object; text for an error), and returns what may be shown."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What ``create_app`` was given, checked."""

    authorize: Authorize
    redact: Redact | None
    hide_payloads: bool
    allow_actions: frozenset[str]
    origins: Collection[str]
    title: str


def checked_actions(names: Collection[str] | None) -> frozenset[str]:
    """Return the actions that there may be, all without names; raises ConfigurationError for one that there is not."""
    if names is None:
        return frozenset(ACTIONS)
    unknown = sorted(set(names) - set(ACTIONS))
    if isinstance(names, str) or unknown:
        raise ConfigurationError(
            f"allow_actions: expected names of actions ({', '.join(ACTIONS)}); got {names if isinstance(names, str) else unknown[0]!r}"
        )
    return frozenset(names)


class Site:
    """The state behind the pages, one per ``create_app``."""

    def __init__(self, source: App[Any] | PgJobStore, rules: Rules, templates: Environment, tokens: Tokens) -> None:
        self._source = source
        self.rules = rules
        self.templates = templates
        self.tokens = tokens
        self.background: set[asyncio.Task[None]] = set()
        """Operations that this process works on; each takes itself out."""
        # Ours only where nobody has opened the application's: written by ``store`` under the lock.
        self._own: PgJobStore | None = None
        self._opening: asyncio.Lock | None = None

    @property
    def app(self) -> App[Any] | None:
        """The app, None where there is only a database."""
        return self._source if isinstance(self._source, App) else None

    @property
    def tasks(self) -> Mapping[str, Task[..., Any, Any, Any]]:
        """The declared tasks by name."""
        return {} if self.app is None else self.app.tasks

    async def store(self) -> PgJobStore:
        """Return the application's store where it is open in this event loop, else one of our own, opened for the pages.

        A mounted application gets no lifespan, so it cannot rely on one. Raises ConfigurationError, with a handed-in pool too, which
        belongs to whoever made it: the application opens it.
        """
        shared = self._source.store if isinstance(self._source, App) else self._source
        if shared.is_open_here:
            return shared
        if self._own is not None and self._own.is_open_here:
            return self._own
        async with self._exclusive():
            if self._own is None or not self._own.is_open_here:
                self._own = shared.another()
                await self._own.start()
            return self._own

    async def close(self) -> None:
        """Stop what goes on in the background, and close what we have opened."""
        for task in list(self.background):
            task.cancel()
        await asyncio.gather(*self.background, return_exceptions=True)
        own, self._own = self._own, None
        if own is not None:
            await own.close()

    def may(self, access: Access, action: str) -> bool:
        """Whether somebody may do this."""
        return action in self.rules.allow_actions and access.role >= ACTIONS[action]

    def sees_payloads(self, access: Access) -> bool:
        """Whether somebody sees payloads, results and the text of errors."""
        return access.payloads and not (self.rules.hide_payloads and access.role < Role.OPERATOR)

    def searches_payloads(self, access: Access) -> bool:
        """Whether somebody may search in them: what is masked for him must not be guessed from what is found."""
        return self.sees_payloads(access) and (self.rules.redact is None or access.role >= Role.ADMIN)

    def _exclusive(self) -> asyncio.Lock:
        # A lock belongs to the loop it was waited for in; tests have several, one after another.
        if self._opening is None or not self._opening.locked():
            self._opening = asyncio.Lock()
        return self._opening
