"""The pages, served, over a database with jobs of every state."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import asyncpg
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from pqrun import App
from pqrun.web import create_app
from tests.web.serving import Browser, by_header, served
from tests.web.shop import fill, make_app


class Pages(NamedTuple):
    """What is served, and where."""

    url: str
    jobs: App[Any]
    ids: dict[str, int]
    connection: asyncpg.Connection
    dsn: str

    def browser(self, role: str = "admin", user: str = "ann") -> Browser:
        """A new browser of somebody."""
        return Browser(self.url, "/ops", role, user)


@asynccontextmanager
async def opened(dsn: str, connection: asyncpg.Connection) -> AsyncIterator[Pages]:
    """The pages of an app, mounted below /ops, with every state there is."""
    jobs = make_app(dsn)
    ids = await fill(connection)
    async with jobs:
        for definition in jobs._schedules.values():
            await jobs.schedules.add(
                definition.name, jobs.tasks["add"].call(a=1), cron="30 2 * * *", tz="Europe/Berlin"
            )
        mounted = create_app(jobs, authorize=by_header)
        async with served(Starlette(routes=[Mount("/ops", mounted)])) as url:
            yield Pages(url, jobs, ids, connection, dsn)


@pytest.fixture
async def pages(dsn: str, connection: asyncpg.Connection) -> AsyncIterator[Pages]:
    """See ``opened``."""
    async with opened(dsn, connection) as made:
        yield made


@pytest.fixture
async def ann(pages: Pages) -> AsyncIterator[Browser]:
    """An admin."""
    async with pages.browser() as browser:
        yield browser
