"""The text that Prometheus reads."""

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client import exposition as client

__all__ = ["exposition"]


def exposition(accept: str = "", registry: CollectorRegistry = REGISTRY) -> tuple[str, bytes]:
    """Return content type and text of all metrics of a registry, in the format that the ``Accept`` header asks for."""
    encode, content_type = client.choose_encoder(accept)
    return content_type, encode(registry)
