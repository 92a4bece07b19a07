"""The test runner: Django's, with pqrun's tables in the test database."""

import asyncio
import os
from urllib.parse import urlsplit

from django.db import connection
from django.test.runner import DiscoverRunner

from pqrun import PgJobStore

from .jobs import jobs


class Runner(DiscoverRunner):
    def setup_databases(self, **options: object) -> object:
        made = super().setup_databases(**options)
        url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}")
        os.environ["DATABASE_URL"] = url.geturl()  # jobs reads it when it is first used
        asyncio.run(PgJobStore(url.geturl()).migrate())
        return made

    def teardown_databases(self, made: object, **options: object) -> None:
        jobs.close_sync()  # a database in use cannot be dropped
        super().teardown_databases(made, **options)
