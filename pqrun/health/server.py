"""HealthServer: /livez, /readyz and /metrics of one worker."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Self, TypeAlias

import msgspec

from pqrun.errors import OptionError
from pqrun.health.http import HttpThread, Request, Response, Route
from pqrun.health.pulse import Answer, Pulse
from pqrun.worker import Worker

__all__ = ["HealthServer", "Metrics"]

BLOCKED_AFTER_DEFAULT = 60.0

Metrics: TypeAlias = Callable[[str], tuple[str, bytes]]
"""From the ``Accept`` header of a scrape to content type and text; called in the server's thread."""

_JSON = "application/json"


class HealthServer:
    """Answers probes about a worker, over HTTP, from a thread of its own; an async context manager around the worker's run.

    ``/livez``: 200 while the worker's event loop turns; 503 once it has stood still for ``blocked_after`` seconds (60), which a restart
    cures. A database that is away never fails it. ``/readyz``: 200 while the worker claims jobs and reaches its database, else 503, with
    ``reasons``. ``/metrics``: what ``metrics`` returns, such as ``pqrun.contrib.prometheus.exposition``; 404 without.

    ``host``: 127.0.0.1 by default; whoever can connect can read. ``port``: 0 lets the system choose, see ``port``. Raises OptionError for
    impossible values, and ConfigurationError, when it is entered, where the port cannot be had.
    """

    def __init__(
        self,
        worker: Worker,
        *,
        port: int,
        host: str = "127.0.0.1",
        blocked_after: float = BLOCKED_AFTER_DEFAULT,
        metrics: Metrics | None = None,
    ) -> None:
        if not 0 <= port <= 65_535:
            raise OptionError(f"port: expected a whole number from 0 to 65535; got {port!r:.80}")
        if not blocked_after > 0:  # true for NaN too
            raise OptionError(f"blocked_after: expected seconds, more than 0; got {blocked_after!r:.80}")
        self._worker = worker
        self._blocked_after = blocked_after
        self._metrics = metrics
        self._pulse = Pulse(worker)
        routes: dict[str, Route] = {"/livez": self._livez, "/readyz": self._readyz}
        if metrics is not None:
            routes["/metrics"] = self._scrape
        self._http = HttpThread(routes, host=host, port=port)

    @property
    def port(self) -> int:
        """The port that it listens on, once it is entered."""
        return self._http.port

    async def __aenter__(self) -> Self:
        self._pulse.start()
        try:
            await asyncio.to_thread(self._http.start)
        except BaseException:
            await self._pulse.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pulse.stop()
        await asyncio.to_thread(self._http.stop)

    def _livez(self, _request: Request) -> Response:
        return self._told(self._pulse.is_live(self._blocked_after), "live", "blocked")

    def _readyz(self, _request: Request) -> Response:
        return self._told(self._pulse.is_ready(self._blocked_after), "ready", "not ready")

    def _told(self, answer: Answer, good: str, bad: str) -> Response:
        vitals = msgspec.structs.asdict(self._worker.vitals)
        body = {
            "status": good if answer.is_good else bad,
            "reasons": answer.reasons,
            "worker_id": self._worker.worker_id,
            "worker": vitals,
            "loop_still_seconds": round(self._pulse.still_seconds, 3),
        }
        status = HTTPStatus.OK if answer.is_good else HTTPStatus.SERVICE_UNAVAILABLE
        return Response(status, _JSON, msgspec.json.encode(body) + b"\n")

    def _scrape(self, request: Request) -> Response:
        assert self._metrics is not None  # noqa: S101  # else there is no such route
        content_type, text = self._metrics(request.accept)
        return Response(HTTPStatus.OK, content_type, text)
