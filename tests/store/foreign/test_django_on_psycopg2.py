"""Django takes psycopg2 where psycopg is not installed: jobs join there too."""

import subprocess
import sys
from pathlib import Path

import asyncpg

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import sys

sys.modules["psycopg"] = None  # as if it were not installed
from urllib.parse import parse_qs, urlsplit

import django
from django.conf import settings
from django.db import connection, transaction

from pqrun.job.record import NewJob
from pqrun.store import PgJobStore

dsn = sys.argv[1]
parts, query = urlsplit(dsn), parse_qs(urlsplit(dsn).query)
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path[1:],
            "USER": parts.username,
            "HOST": query["host"][0],
            "PORT": query.get("port", [""])[0],
        }
    }
)
django.setup()
store = PgJobStore(dsn)
job = NewJob(job_type="t", payload='{"a": "100 % it\\'s"}', dedupe_key="k")
with transaction.atomic():
    (one,) = store.enqueue_jobs_sync([job], connection)
    many = store.enqueue_jobs_sync([job, NewJob(job_type="t", payload="{}")], connection)
    transaction.set_rollback(True)
with transaction.atomic():
    store.enqueue_jobs_sync([job], connection)
assert type(connection.connection).__module__.startswith("psycopg2"), type(connection.connection)
print(one.created, many[0].id == one.id, many[1].created)
connection.close()
"""


async def test_jobs_join_the_transaction_of_django_on_psycopg2(dsn: str, connection: asyncpg.Connection) -> None:
    done = subprocess.run(  # noqa: ASYNC221  # nothing else runs here
        [sys.executable, "-c", PROGRAM, dsn], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "True True True\n", done.stderr
    rows = await connection.fetch("SELECT payload->>'a' AS a FROM pqrun.jobs")
    assert [row["a"] for row in rows] == ["100 % it's"]
