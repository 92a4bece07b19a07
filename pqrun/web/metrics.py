"""``/metrics`` beside the pages: the metrics of this process for Prometheus, for whoever may see the pages."""

from starlette.responses import Response

from pqrun.errors import MissingExtraError
from pqrun.web.serving import View
from pqrun.web.visit import Visit

__all__ = ["metrics_view"]


def metrics_view() -> View | None:
    """Return the view; None where ``pqrun[prometheus]`` is not installed: then there is no such page."""
    try:
        from pqrun.contrib.prometheus import exposition  # an extra of its own
    except MissingExtraError:
        return None

    async def view(visit: Visit) -> Response:
        content_type, body = exposition(visit.request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    return view
