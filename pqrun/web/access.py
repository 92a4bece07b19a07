"""Who may see the pages, and who may do what: roles, and the ways to find out who asks."""

import base64
import binascii
import hmac
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

from starlette.requests import Request

from pqrun.errors import ConfigurationError

__all__ = ["ACTIONS", "Access", "Authorize", "BasicAuth", "LocalOnly", "Role", "TrustedHeader", "is_loopback", "judge"]

USER_MAX: Final = 200
"""Characters of a name that the audit log keeps."""


class Role(IntEnum):
    """What somebody may do; each may what the one before may."""

    VIEWER = 1
    """Reads, and changes nothing."""
    OPERATOR = 2
    """Retries, cancels, moves and makes jobs; pauses and resumes queues, tasks, schedules and workers; runs and skips schedules;
    asks workers for stacks."""
    ADMIN = 3
    """Deletes jobs, purges queues, runs retention, changes and removes schedules, drains workers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """What ``authorize`` returns for somebody who may see the pages."""

    user: str
    """As the audit log names him."""
    role: Role = Role.VIEWER
    payloads: bool = True
    """Whether he sees payloads, results and the text of errors, and may search in them."""


Authorize: TypeAlias = Callable[[Request], Access | Awaitable[Access | None] | None]
"""Says who asks, None for somebody who may not; a plain or an async function."""

ACTIONS: Final[Mapping[str, Role]] = {
    "retry": Role.OPERATOR,
    "cancel": Role.OPERATOR,
    "run_at": Role.OPERATOR,
    "move": Role.OPERATOR,
    "prioritize": Role.OPERATOR,
    "enqueue": Role.OPERATOR,
    "pause": Role.OPERATOR,
    "resume": Role.OPERATOR,
    "run": Role.OPERATOR,
    "skip": Role.OPERATOR,
    "stacks": Role.OPERATOR,
    "delete": Role.ADMIN,
    "purge": Role.ADMIN,
    "edit": Role.ADMIN,
    "remove": Role.ADMIN,
    "cleanup": Role.ADMIN,
    "drain": Role.ADMIN,
}
"""Every action of the pages, and the least role that may."""

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


async def judge(authorize: Authorize, request: Request) -> Access | None:
    """Ask, and check the answer; raises ConfigurationError for one that is neither Access nor None."""
    answer = authorize(request)
    found = await answer if inspect.isawaitable(answer) else answer
    if found is not None and not isinstance(found, Access):
        raise ConfigurationError(f"authorize= must return pqrun.web.Access or None; got {type(found).__name__}")
    if found is not None and not 1 <= len(found.user) <= USER_MAX:
        raise ConfigurationError(f"Access(user=) must have 1 to {USER_MAX} characters; got {len(found.user)}")
    return found


def is_loopback(host: str | None) -> bool:
    """Whether an address, or ``localhost``, is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return False


class LocalOnly:
    """Whoever sits at this machine: the rule where nobody gave another.

    A request must come from the machine itself, ask for it by a name of the machine itself (a page elsewhere may give its own name this
    address), and must not have come through a proxy, behind which everybody has the address of the proxy.
    """

    def __init__(self, role: Role = Role.VIEWER) -> None:
        self._role = role

    def __call__(self, request: Request) -> Access | None:
        """See ``Authorize``."""
        host = request.headers.get("host", "").rpartition(":")
        name = host[0] if host[0] and host[2].isdigit() else request.headers.get("host", "")
        is_here = request.client is not None and is_loopback(request.client.host)
        if not is_here or name not in LOOPBACK_NAMES or any(name in request.headers for name in _FORWARDED):
            return None
        return Access(user="local", role=self._role)


class BasicAuth:
    """Names and passwords, asked for by the browser. Behind TLS only: both cross the network as they are."""

    challenge = 'Basic realm="pqrun", charset="UTF-8"'

    def __init__(self, passwords: Mapping[str, str], roles: Mapping[str, Role], default: Role = Role.VIEWER) -> None:
        if not passwords or not all(passwords.values()):
            raise ConfigurationError("basic authentication needs a user with a password of at least one character")
        self._passwords = {user: password.encode() for user, password in passwords.items()}
        self._roles = roles
        self._default = default

    def __call__(self, request: Request) -> Access | None:
        """See ``Authorize``."""
        kind, _, encoded = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "basic":
            return None
        try:
            user, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        # Compared also where there is no such user: the time does not tell who there is.
        is_right = hmac.compare_digest(password.encode(), self._passwords.get(user, b"\x00 no such user"))
        if not colon or not is_right or user not in self._passwords:
            return None
        return Access(user=user, role=self._roles.get(user, self._default))


class TrustedHeader:
    """A proxy that has asked already, and names the user in a header; believed from the addresses of ``proxies`` alone."""

    def __init__(
        self, header: str, proxies: Collection[str], roles: Mapping[str, Role], default: Role = Role.VIEWER
    ) -> None:
        self._header = header
        self._networks = [_network(proxy) for proxy in proxies]
        self._roles = roles
        self._default = default
        if not self._networks:
            raise ConfigurationError(
                f"the header {header} is believed from listed proxies alone; name at least one, such as 127.0.0.1 or 10.0.0.0/24"
            )

    def __call__(self, request: Request) -> Access | None:
        """See ``Authorize``."""
        users = request.headers.getlist(self._header)
        if len(users) != 1 or not 1 <= len(users[0]) <= USER_MAX or request.client is None:
            return None
        try:
            address = ip_address(request.client.host)
        except ValueError:
            return None
        if not any(address in network for network in self._networks):
            return None
        return Access(user=users[0], role=self._roles.get(users[0], self._default))


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError:
        pass
    raise ConfigurationError(f"expected the address of a proxy, or a network such as 10.0.0.0/24; got {text!r:.80}")
