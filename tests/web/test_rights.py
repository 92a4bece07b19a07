"""Who sees what, who may do what, and what does not come from these pages."""

import base64
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from pqrun import App
from pqrun.errors import ConfigurationError
from pqrun.web import ACTIONS, Access, BasicAuth, LocalOnly, Role, TrustedHeader, create_app
from pqrun.web.defence import HEADERS
from tests.web.conftest import Pages
from tests.web.serving import Browser, by_header, served
from tests.web.shop import add_attempt

GENUINE = {"sec-fetch-site": "same-origin"}


def request_of(client: str = "127.0.0.1", **headers: str) -> Request:
    sent = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
    return Request(
        {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": sent, "client": (client, 1)}
    )


async def test_every_answer_carries_the_headers(pages: Pages, ann: Browser) -> None:
    for path in (
        "/",
        "/jobs",
        "/jobs/999999",
        "/nowhere",
        "/static/pages.css",
        "/livez",
        "/api/jobs.json",
        "/jobs.csv",
    ):
        answer = await ann.client.get("/ops" + path)
        for name, value in HEADERS.items():
            expected = "no-cache" if name == "Cache-Control" and "/static/" in path else value
            assert answer.headers[name] == expected, (path, name)
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


async def test_no_page_has_an_inline_script_or_style(pages: Pages, ann: Browser) -> None:
    for path in (
        "/",
        "/jobs",
        f"/jobs/{pages.ids['FAILED']}",
        "/tasks/send_email",
        "/queues",
        "/queues/mail",
        "/schedules/nightly",
        "/workers",
        f"/workers/{pages.ids['worker']}",
        "/system",
        "/help",
    ):
        text = await ann.get(path)
        assert "<style" not in text
        assert " style=" not in text
        assert " onclick" not in text
        assert "javascript:" not in text
        assert all("src=" in tag for tag in text.split("<script")[1:]), path


async def test_nobody_sees_nothing(pages: Pages) -> None:
    async with pages.browser(role="nobody") as nobody:
        for path in ("/", "/jobs", "/api/jobs.json", "/events", "/jobs.csv", "/nowhere"):
            assert "may not see" in await nobody.get(path, status=403), path


async def test_a_viewer_gets_no_form_and_is_refused_with_one(pages: Pages, ann: Browser) -> None:
    async with pages.browser(role="viewer", user="ann") as viewer:
        for path in (
            "/",
            "/jobs",
            f"/jobs/{pages.ids['FAILED']}",
            "/tasks",
            "/tasks/add",
            "/queues",
            "/queues/mail",
            "/schedules/nightly",
            "/workers",
            f"/workers/{pages.ids['worker']}",
        ):
            assert 'method="post"' not in await viewer.get(path), path
        token = await ann.token("/jobs")
        viewer.client.cookies = ann.client.cookies  # the very same browser and user, whose role is less now
        for path, fields in (
            (f"/jobs/{pages.ids['FAILED']}", {"do": "retry"}),
            ("/queues/mail", {"do": "pause"}),
            ("/queues/mail", {"do": "resume"}),
            ("/queues/mail", {"do": "purge", "how": "cancel", "name": "mail"}),
            ("/tasks/add", {"do": "pause"}),
            (f"/jobs/{pages.ids['FAILED']}", {"do": "copy", "payload": "{}"}),
            ("/jobs", {"do": "delete", "id": "1"}),
            ("/tasks/add", {"field.a": "1"}),
            ("/schedules/nightly", {"do": "pause"}),
            (f"/workers/{pages.ids['worker']}", {"do": "pause"}),
            (f"/workers/{pages.ids['worker']}", {"do": "resume"}),
            (f"/workers/{pages.ids['worker']}", {"do": "drain", "sure": "yes"}),
            (f"/workers/{pages.ids['worker']}", {"do": "stacks"}),
        ):
            answer = await viewer.client.post("/ops" + path, data={"_token": token, **fields}, headers=GENUINE)
            assert answer.status_code == 403, (path, answer.text)
            assert "may not do this" in answer.text
    assert await pages.connection.fetchval("SELECT count(*) FROM pqrun.audit") == 0


async def test_an_operator_does_not_delete(pages: Pages) -> None:
    async with pages.browser(role="operator") as operator:
        await operator.post(f"/jobs/{pages.ids['FAILED']}", {"do": "delete"}, token_of="/jobs", status=403)
        await operator.post("/schedules/nightly", {"do": "remove"}, token_of="/jobs", status=403)
        await operator.post(f"/jobs/{pages.ids['FAILED']}", {"do": "retry"}, token_of="/jobs")


async def test_actions_that_are_not_allowed_are_allowed_to_nobody(pages: Pages) -> None:
    async with (
        served(create_app(pages.jobs, authorize=by_header, allow_actions=["retry"])) as url,
        Browser(url) as admin,
    ):
        await admin.post(f"/jobs/{pages.ids['READY']}", {"do": "cancel"}, token_of="/jobs", status=403)
        await admin.post(f"/jobs/{pages.ids['FAILED']}", {"do": "retry"}, token_of="/jobs")
    with pytest.raises(ConfigurationError, match="allow_actions: expected names of actions"):
        create_app(pages.jobs, allow_actions=["explode"])
    assert set(ACTIONS) >= {"retry", "cancel", "delete"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "https://evil.example", "sec-fetch-site": "same-origin"},
    ],
    ids=str,
)
async def test_a_post_from_elsewhere_does_nothing_even_with_the_token(
    pages: Pages, ann: Browser, headers: dict[str, str]
) -> None:
    job_id = pages.ids["FAILED"]
    data = {"_token": await ann.token("/jobs"), "do": "retry"}
    answer = await ann.client.post(f"/ops/jobs/{job_id}", data=data, headers=headers)
    assert answer.status_code == 403
    assert "Nothing was done" in answer.text
    assert await pages.connection.fetchval("SELECT status FROM pqrun.jobs WHERE id = $1", job_id) == "FAILED"


async def test_a_post_from_here_needs_the_token_of_this_user_in_this_browser(pages: Pages, ann: Browser) -> None:
    path = f"/ops/jobs/{pages.ids['FAILED']}"
    own = await ann.token("/jobs")
    async with pages.browser(user="bob") as bob:
        others = await bob.token("/jobs")
        bob.client.cookies = ann.client.cookies
        stolen = await bob.client.post(path, data={"_token": own, "do": "retry"}, headers=GENUINE)
        assert stolen.status_code == 403
    for data in (
        {"do": "retry"},
        {"do": "retry", "_token": ""},
        {"do": "retry", "_token": "é"},
        {"do": "retry", "_token": others},
    ):
        assert (await ann.client.post(path, data=data, headers=GENUINE)).status_code == 403
    bare = {"x-test-role": "admin", "x-test-user": "ann", **GENUINE}
    async with httpx.AsyncClient(base_url=pages.url) as without_cookie:
        answer = await without_cookie.post(path, data={"do": "retry", "_token": own}, headers=bare)
        assert answer.status_code == 403
    assert (
        await ann.client.post(path, data={"do": "retry", "_token": own}, headers={"origin": pages.url})
    ).status_code == 303


async def test_a_secret_makes_forms_valid_in_every_process(pages: Pages) -> None:
    made = [create_app(pages.jobs, authorize=by_header, secret="a secret of some length") for _ in range(2)]
    async with served(made[0]) as first, served(made[1]) as second, Browser(first) as browser:
        token = await browser.token("/jobs")
        cookies = dict(browser.client.cookies)
        async with httpx.AsyncClient(base_url=second, cookies=cookies, headers={"x-test-user": "ann"}) as other:
            fields = {"do": "retry", "_token": token}
            answer = await other.post(f"/jobs/{pages.ids['FAILED']}", data=fields, headers=GENUINE)
            assert answer.status_code == 303
    with pytest.raises(ConfigurationError, match="at least 16"):
        create_app(pages.jobs, secret="short")


async def test_what_is_no_form_or_too_much_is_refused(pages: Pages, ann: Browser) -> None:
    await ann.get("/jobs")
    answer = await ann.client.post("/ops/jobs", json={"do": "retry"}, headers=GENUINE)
    assert answer.status_code == 415
    answer = await ann.client.post("/ops/jobs", data={"do": "x" * 1_100_000}, headers=GENUINE)
    assert answer.status_code == 413
    answer = await ann.client.post("/ops/jobs", data={f"f{n}": "" for n in range(6000)}, headers=GENUINE)
    assert answer.status_code == 400


SECRET = "4111-1111"


async def secret_job(pages: Pages) -> int:
    job_id = int(
        await pages.connection.fetchval(
            "INSERT INTO pqrun.jobs (job_type, status, attempts, finished_at, payload, result, last_error, dedupe_key) "
            "VALUES ('add', 'DONE', 1, now(), $1, $2, $3, $4) RETURNING id",
            f'{{"card": "{SECRET}"}}',
            f'{{"card": "{SECRET}"}}',
            f"ValueError: {SECRET} is refused",
            f"card:{SECRET}",
        )
    )
    await add_attempt(pages.connection, job_id, f"{SECRET} is refused", "add")
    await pages.connection.execute(
        "UPDATE pqrun.attempts SET frame = NULL, worker = NULL, exception_type = 'ValueError' WHERE job_id = $1", job_id
    )
    return job_id


async def everything(browser: Browser, job_id: int) -> str:
    paths = (
        "/",
        "/errors",
        "/api/errors.json",
        f"/jobs/{job_id}",
        "/jobs",
        "/tasks/add",
        f"/api/jobs/{job_id}.json",
        "/api/jobs.json",
        "/jobs.csv",
        "/jobs.ndjson",
    )
    return "".join([await browser.get(path) for path in paths])


async def test_hidden_payloads_are_nowhere_and_cannot_be_guessed_by_searching(pages: Pages) -> None:
    job_id = await secret_job(pages)
    app = create_app(pages.jobs, authorize=by_header, hide_payloads=True)
    async with served(app) as url, Browser(url, role="viewer") as viewer, Browser(url, role="operator") as operator:
        shown = await everything(viewer, job_id)
        assert SECRET not in shown
        assert "Hidden: your role does not see payload" in shown
        assert SECRET in await everything(operator, job_id)
        for query in (f"payload.card:{SECRET}", f"error:{SECRET}", f"dedupe:card:{SECRET}", SECRET):
            assert "may not search" in await viewer.get(f"/jobs?q={query}")
            await viewer.get(f"/jobs.csv?q={query}", status=422)


async def test_what_the_application_masks_is_masked_everywhere_and_not_edited(pages: Pages) -> None:
    job_id = await secret_job(pages)

    def redact(job_type: str, part: str, value: Any) -> Any:
        if part == "error":
            return value.replace(SECRET, "****")
        return {**value, "card": "****"} if "card" in value else value

    app = create_app(pages.jobs, authorize=by_header, redact=redact)
    async with served(app) as url, Browser(url) as admin, Browser(url, role="operator") as operator:
        page = await admin.get(f"/jobs/{job_id}")
        assert SECRET not in page.replace(f"card:{SECRET}", "")
        assert "masked by the application" in page
        assert "Copy with another payload" not in page
        await admin.post(f"/jobs/{job_id}", {"do": "copy", "payload": "{}"}, token_of="/jobs", status=403)
        assert "may not search" in await operator.get(f"/jobs?q=payload.card:{SECRET}")


async def test_a_redaction_that_fails_hides(pages: Pages) -> None:
    job_id = await secret_job(pages)

    def redact(job_type: str, part: str, value: Any) -> Any:
        raise RuntimeError(SECRET)

    async with served(create_app(pages.jobs, authorize=by_header, redact=redact)) as url, Browser(url) as admin:
        assert SECRET not in (await everything(admin, job_id)).replace(f"card:{SECRET}", "")


async def test_without_authorize_this_machine_reads_and_nobody_else() -> None:
    rule = LocalOnly()
    assert rule(request_of(host="127.0.0.1:8100")) == Access(user="local", role=Role.VIEWER)
    assert rule(request_of(host="localhost")) is not None
    assert rule(request_of(host="[::1]:8100", client="::1")) is not None
    assert rule(request_of(host="127.0.0.1", client="10.0.0.5")) is None
    assert rule(request_of(host="evil.example:8100")) is None  # a name that was given this address
    for header in ("x_forwarded_for", "forwarded", "x_real_ip", "via"):
        assert rule(request_of(host="localhost", **{header: "1.2.3.4"})) is None
    assert rule(request_of()) is None


async def test_basic_authentication_takes_the_right_password_alone(pages: Pages) -> None:
    auth = BasicAuth({"ann": "pässword", "bob": "x"}, {"ann": Role.ADMIN})

    def header(text: str) -> str:
        return f"Basic {base64.b64encode(text.encode()).decode()}"

    assert auth(request_of(authorization=header("ann:pässword"))) == Access(user="ann", role=Role.ADMIN)
    assert auth(request_of(authorization=header("bob:x"))) == Access(user="bob", role=Role.VIEWER)
    for wrong in (header("ann:other"), header("eve:x"), header("ann"), "Basic ???", "Bearer x", ""):
        assert auth(request_of(authorization=wrong)) is None
    async with served(create_app(pages.jobs, authorize=auth)) as url, httpx.AsyncClient(base_url=url) as client:
        refused = await client.get("/jobs")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (
            401,
            'Basic realm="pqrun", charset="UTF-8"',
        )
        assert (await client.get("/jobs", auth=("bob", "x"))).status_code == 200
    with pytest.raises(ConfigurationError):
        BasicAuth({"ann": ""}, {})


def test_a_header_is_believed_from_listed_proxies_alone() -> None:
    auth = TrustedHeader("X-Remote-User", ["10.0.0.0/24", "::1"], {"ann": Role.OPERATOR})
    assert auth(request_of("10.0.0.7", x_remote_user="ann")) == Access(user="ann", role=Role.OPERATOR)
    assert auth(request_of("10.0.1.7", x_remote_user="ann")) is None
    assert auth(request_of("10.0.0.7")) is None
    assert auth(request_of("unix", x_remote_user="ann")) is None
    with pytest.raises(ConfigurationError, match="name at least one"):
        TrustedHeader("X-Remote-User", [], {})
    with pytest.raises(ConfigurationError, match="expected the address of a proxy"):
        TrustedHeader("X-Remote-User", ["example.org"], {})


async def test_authorize_may_be_async_and_its_nonsense_is_an_error_not_an_entrance(pages: Pages) -> None:
    async def asked(request: Request) -> Access | None:
        return Access(user="ann")

    def wrong(request: Request) -> Any:
        return True

    async with served(create_app(pages.jobs, authorize=asked)) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/jobs")).status_code == 200
    async with served(create_app(pages.jobs, authorize=wrong)) as url, httpx.AsyncClient(base_url=url) as client:
        answer = await client.get("/jobs")
        assert answer.status_code == 500
        assert "Traceback" not in answer.text
        assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]


def test_what_is_no_app_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected an App or a PgJobStore"):
        create_app("postgresql://x")  # type: ignore[arg-type]  # the mistake that it is about
    assert create_app(App(dsn="postgresql://localhost/x")) is not None


async def test_a_query_about_payloads_is_not_told_to_who_does_not_see_them(pages: Pages) -> None:
    app = create_app(pages.jobs, authorize=by_header, hide_payloads=True)
    async with served(app) as url, Browser(url) as admin, Browser(url, role="viewer") as viewer:
        query = {"do": "retry", "scope": "all", "q": f"state:failed payload.card:{SECRET}"}
        answer = await admin.post("/jobs", query, token_of="/jobs")
        page = answer.headers["location"]
        for path in (page, "/operations", f"/api{page}.json", "/api/operations.json"):
            assert SECRET in await admin.get(path)
            assert SECRET not in await viewer.get(path)
