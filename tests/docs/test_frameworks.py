"""The web examples under the servers that their readers use, with their workers as the examples say."""

import asyncio
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import httpx
import pytest

from pqrun import PgJobStore
from tests.support.serving import ROOT, Project, poll

BEYOND = 10**30
"""No bigint."""

INVOICE = {"number": "2026-1", "total": 700}
OTHERS = "SELECT id FROM pqrun.enqueue('another', '{}')"
FAILING = "SELECT id FROM pqrun.enqueue('write_invoice', jsonb_build_object('order_id', $1::int), max_attempts => 1)"


def with_driver(dsn: str, driver: str) -> str:
    """As SQLAlchemy writes it."""
    return urlunsplit(urlsplit(dsn)._replace(scheme=f"postgresql+{driver}"))


async def count(connection: asyncpg.Connection, table: str) -> int:
    return int(await connection.fetchval(f"SELECT count(*) FROM {table}"))


async def order(client: httpx.AsyncClient, customer: str, total: int) -> dict[str, int]:
    answer = await client.post("/orders", json={"customer": customer, "total": total})
    assert answer.status_code == 202, answer.text
    accepted: dict[str, int] = answer.json()
    return accepted


async def check_orders(client: httpx.AsyncClient, connection: asyncpg.Connection, table: str) -> None:
    """What the three shops promise: an order with its job and result, or neither; errors shown; unknown ids unknown."""
    accepted = await order(client, "Ada", 700)
    shown = await poll(client, f"/invoices/{accepted['job_id']}", ["DONE"])
    assert shown["invoice"] == INVOICE
    jobs = await count(connection, "pqrun.jobs")

    refused = await client.post("/orders", json={"customer": "Ada", "total": 700})
    assert refused.status_code == 409
    assert await count(connection, table) == 1
    assert await count(connection, "pqrun.jobs") == jobs

    free = await order(client, "Bob", 0)
    failing = await connection.fetchval(FAILING, free["order_id"])
    shown = await poll(client, f"/invoices/{failing}", ["FAILED"])
    assert shown["error"] == "ValueError: nothing to pay"
    assert shown.get("invoice") is None
    shown = await poll(client, f"/invoices/{free['job_id']}", ["SCHEDULED"])  # attempts are left
    assert shown["error"] == "ValueError: nothing to pay"

    others = await connection.fetchval(OTHERS)
    for job_id in (others, failing + 1000, BEYOND):
        assert (await client.get(f"/invoices/{job_id}")).status_code == 404


@pytest.fixture
async def fastapi_shop(dsn: str) -> Project:
    shop = Project(ROOT, DATABASE_URL=with_driver(dsn, "asyncpg"))
    await shop.command("-m", "examples.fastapi_app")
    return shop


FASTAPI = ("-m", "uvicorn", "examples.fastapi_app:app", "--port", "0")


async def test_a_fastapi_application_runs_its_jobs_in_its_lifespan(
    fastapi_shop: Project, connection: asyncpg.Connection
) -> None:
    async with fastapi_shop.serving(*FASTAPI) as client:
        await check_orders(client, connection, "orders")
        schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
        assert schemas["Progress"]["properties"]["invoice"]["anyOf"][0] == {"$ref": "#/components/schemas/Invoice"}
        assert schemas["Status"]["enum"] == ["SCHEDULED", "READY", "RUNNING", "DONE", "FAILED", "CANCELLED"]
        assert (await client.post("/orders", json={"customer": "Ada", "total": "x"})).status_code == 422
    assert await connection.fetchval("SELECT dead_at IS NOT NULL FROM pqrun.workers")  # it left in order


async def test_a_fastapi_application_leaves_its_jobs_to_a_worker_of_their_own(
    fastapi_shop: Project, connection: asyncpg.Connection
) -> None:
    async with fastapi_shop.serving(*FASTAPI, WORKER_ENABLED="false") as client:
        accepted = await order(client, "Ada", 700)
        assert (await client.get(f"/invoices/{accepted['job_id']}")).json()["status"] == "READY"
        assert await count(connection, "pqrun.workers") == 0
        async with fastapi_shop.working("examples.fastapi_app:jobs", "--worker-id", "till"):
            shown = await poll(client, f"/invoices/{accepted['job_id']}", ["DONE"])
        assert shown == {"status": "DONE", "invoice": INVOICE, "error": None}
    assert await connection.fetchval("SELECT locked_by FROM pqrun.jobs") == "till"


async def test_a_starlette_application_waits_for_a_worker_elsewhere(dsn: str, store: PgJobStore) -> None:
    project = Project(ROOT, PQRUN_DSN=dsn)
    async with (
        project.serving("-m", "uvicorn", "examples.starlette_app:app", "--port", "0") as client,
        project.working("examples.starlette_app:jobs"),
    ):
        answer = await client.post("/resize", json={"path": "a.png", "width": 50})
        assert (answer.status_code, answer.json()) == (200, {"id": 1, "path": "50/a.png"})
        assert (await client.get("/resize/1")).json() == {"status": "DONE", "path": "50/a.png"}

        answer = await client.post("/resize", json={"path": "a.png", "width": 0})
        assert answer.status_code == 500
        assert answer.json()["error"].endswith("ValueError: a picture needs a width")
        error = "ValueError: a picture needs a width"
        assert (await client.get(f"/resize/{answer.json()['id']}")).json() == {"status": "FAILED", "error": error}

        assert (await client.post("/resize", json={"width": "x"})).status_code == 422
        others = await store.enqueue("another", {})
        for job_id in (others, 1000, BEYOND):
            assert (await client.get(f"/resize/{job_id}")).status_code == 404


async def test_a_litestar_application_enqueues_for_a_worker_elsewhere(dsn: str, store: PgJobStore) -> None:
    project = Project(ROOT, PQRUN_DSN=dsn)
    async with project.serving("-m", "uvicorn", "examples.litestar_app:app", "--port", "0") as client:
        answer = await client.post("/reports", json={"year": 2025})
        assert (answer.status_code, answer.json()) == (202, {"id": 1, "created": True})
        assert (await client.post("/reports", json={"year": 2025})).json() == {"id": 1, "created": False}
        future = (await client.post("/reports", json={"year": 2100})).json()["id"]
        async with project.working("examples.litestar_app:jobs"):
            shown = await poll(client, "/reports/1", ["DONE"])
            assert shown == {"status": "DONE", "report": {"url": "/files/2025.pdf"}, "error": None}
            shown = await poll(client, f"/reports/{future}", ["FAILED"])
            assert shown == {"status": "FAILED", "report": None, "error": "ValueError: that year is not over"}
        others = await store.enqueue("another", {})
        for job_id in (others, 1000, BEYOND):
            assert (await client.get(f"/reports/{job_id}")).status_code == 404
        schemas = (await client.get("/schema/openapi.json")).json()["components"]["schemas"]
        assert "Written" in schemas


@pytest.fixture
async def flask_shop(dsn: str) -> Project:
    shop = Project(ROOT, DATABASE_URL=with_driver(dsn, "psycopg"))
    await shop.command("-m", "flask", "--app", "examples.flask_app", "init-db")
    return shop


async def test_a_flask_application_enqueues_under_its_own_server(
    flask_shop: Project, connection: asyncpg.Connection
) -> None:
    async with (
        flask_shop.serving("-m", "flask", "--app", "examples.flask_app", "run", "--port", "0") as client,
        flask_shop.working("examples.flask_app:jobs"),
    ):
        await check_orders(client, connection, "orders")


async def test_a_flask_application_enqueues_in_the_forked_workers_of_gunicorn(
    flask_shop: Project, connection: asyncpg.Connection
) -> None:
    arguments = (
        "--preload",
        "--workers",
        "2",
        "--bind",
        "127.0.0.1:0",
        "--no-control-socket",
        "examples.flask_app:app",
    )
    async with flask_shop.serving("-m", "gunicorn", *arguments) as client:
        accepted = await asyncio.gather(*(order(client, customer, 700) for customer in ("Ada", "Bob", "Eve", "Kim")))
        assert (await client.post("/orders", json={"customer": "Ada", "total": 700})).status_code == 409
        for one in accepted:
            shown = (await client.get(f"/invoices/{one['job_id']}")).json()
            assert shown == {"status": "READY", "error": None}
    assert await count(connection, "orders") == await count(connection, "pqrun.jobs") == 4


@pytest.fixture
async def django_shop(dsn: str) -> Project:
    shop = Project(ROOT / "examples" / "django_shop", DATABASE_URL=dsn)
    await shop.command("manage.py", "migrate", "--verbosity", "0")
    return shop


async def test_a_django_project_enqueues_in_its_transactions_and_its_worker_uses_the_orm(
    django_shop: Project, connection: asyncpg.Connection
) -> None:
    async with (
        django_shop.serving("manage.py", "runserver", "--noreload", "127.0.0.1:0") as client,
        django_shop.working("shop.worker:jobs"),
    ):
        await check_orders(client, connection, "shop_order")
    assert await connection.fetchval("SELECT array_agg(number) FROM shop_invoice") == ["2026-1"]


async def test_a_django_project_under_asgi_defers_and_awaits_in_async_views(
    django_shop: Project, connection: asyncpg.Connection
) -> None:
    async with (
        django_shop.serving("-m", "uvicorn", "shop.asgi:application", "--port", "0") as client,
        django_shop.working("shop.worker:jobs"),
    ):
        accepted = await order(client, "Ada", 700)
        shown = await poll(client, f"/invoices/{accepted['job_id']}", ["DONE"])
        assert shown["invoice"] == INVOICE
        answer = await client.get(f"/orders/{accepted['order_id']}/reminder")
        assert answer.json() == {"customer": "Ada"}
        assert (await client.get("/orders/1000/reminder")).status_code == 404


async def test_the_django_project_passes_its_own_tests_and_misses_no_migration(dsn: str) -> None:
    shop = Project(ROOT / "examples" / "django_shop", DATABASE_URL=dsn)
    await shop.command("manage.py", "test", "--noinput")  # Django's own checks, too; in a database of its own
    await shop.command("manage.py", "makemigrations", "--check", "--dry-run")


async def test_the_pages_inside_fastapi_know_staff_and_mask_cards(dsn: str, connection: asyncpg.Connection) -> None:
    project = Project(ROOT, PQRUN_DSN=dsn)
    async with project.serving("-m", "uvicorn", "examples.fastapi_pages:app", "--port", "0") as client:
        answer = await client.post("/orders/7/charge", params={"card": "4111-1111-1111-4242", "amount": 5})
        job = answer.json()["job"]
        assert (await client.get("/ops/jobs")).status_code == 403
        page = await client.get(f"/ops/jobs/{job}", headers={"X-Remote-User": "ann"})
        assert page.status_code == 200
        assert "**** 4242" in page.text
        assert "4111" not in page.text
        assert "Cancel" in page.text
        page = await client.get(f"/ops/jobs/{job}", headers={"X-Remote-User": "eve"})
        assert "Cancel</button>" not in page.text
