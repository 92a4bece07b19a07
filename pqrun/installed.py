"""Which pqrun this is."""

from functools import cache

__all__ = ["installed_version"]


@cache
def installed_version() -> str | None:
    """Return the version of the installed package; None where it runs from a source tree that nobody installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and only needed where somebody asks

    try:
        return version("pqrun")
    except PackageNotFoundError:
        return None
