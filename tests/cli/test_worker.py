"""``pqrun worker module:app`` as a process: its jobs, its log, its signals, its errors."""

import asyncio
import re
import signal
from pathlib import Path

import asyncpg
import pytest

from pqrun import PgJobStore, Status
from tests.cli.running import environment, run_command, running, without
from tests.support.rows import make_job
from tests.support.waiting import wait_until

SECRET = {"number": 1, "card": "4111-1111"}
STARTED = "worker .* started"
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR) [\w.]+: .+")


async def test_a_worker_runs_jobs_and_ends_with_sigterm(shop: Path, dsn: str, store: PgJobStore) -> None:
    async with running(
        "worker", "shop:jobs", "--worker-id", "till", env=environment(PQRUN_DSN=dsn), cwd=shop
    ) as worker:
        await worker.wait_line("worker till started: 1 slots, 4 job types")
        paid = await store.enqueue("pay", SECRET)
        refused = await store.enqueue("refuse", SECRET, max_attempts=1)
        await worker.wait_line(f"done pay id={paid}")
        await worker.wait_line(f"failed refuse id={refused} .* for good: ValueError")
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0
    assert "worker till stopped" in worker.lines[-1]
    assert [line for line in worker.lines if not LOG_LINE.fullmatch(line)] == []
    assert "4111" not in worker.output
    done, failed = await store.get(paid), await store.get(refused)
    assert done is not None
    assert (done.status, done.locked_by) == (Status.DONE, "till")
    assert failed is not None
    assert failed.status is Status.FAILED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_worker_in_a_long_sleep_ends_at_once(shop: Path, dsn: str, number: signal.Signals) -> None:
    async with running("worker", "shop:jobs", env=environment(PQRUN_DSN=dsn), cwd=shop) as worker:
        await worker.wait_line(STARTED)
        worker.send(number)
        assert await worker.end() == 0


async def test_running_jobs_have_their_grace_and_a_second_signal_cuts_it_short(
    shop: Path, dsn: str, store: PgJobStore
) -> None:
    job_id = await store.enqueue("wait_for", {"seconds": 3600})
    flags = ("--shutdown-grace", "1800", "--shutdown-timeout", "3600")
    async with running("worker", "shop:jobs", *flags, env=environment(PQRUN_DSN=dsn), cwd=shop) as worker:
        await worker.wait_line(f"picked wait_for id={job_id}")
        worker.send(signal.SIGTERM)
        await worker.wait_line("stopping: wait, 1 jobs in hand")
        worker.send(signal.SIGTERM)
        await worker.wait_line(f"released wait_for id={job_id}")
        assert await worker.end() == 0
    job = await store.get(job_id)
    assert job is not None
    assert (job.status, job.attempts, job.locked_by) == (Status.READY, 0, None)


async def test_a_signal_while_the_module_is_imported_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import threading\nprint('importing')\nthreading.Event().wait()\n")
    async with running("worker", "slow:jobs", env=environment(), cwd=tmp_path) as worker:
        await worker.wait_line("importing")
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0
    assert "stopped before the worker had started" in worker.lines[-1]


async def test_a_signal_while_the_resources_open_ends_the_start(tmp_path: Path, dsn: str) -> None:
    (tmp_path / "slow.py").write_text(
        "import asyncio\nfrom contextlib import asynccontextmanager\nfrom pqrun import App\n"
        "@asynccontextmanager\nasync def resources():\n    print('opening')\n    await asyncio.Event().wait()\n    yield 1\n"
        "jobs = App(resources=resources)\n"
    )
    async with running("worker", "slow:jobs", env=environment(PQRUN_DSN=dsn), cwd=tmp_path) as worker:
        await worker.wait_line("opening")
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0
    assert "the app has no tasks" in worker.lines[0]


async def test_a_signal_while_the_database_does_not_answer_ends_the_start(shop: Path) -> None:
    asked = asyncio.Event()

    async def be_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(be_silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        env = environment(PQRUN_DSN=f"postgresql://shop:hunter2@127.0.0.1:{port}/shop?sslmode=disable")
        async with running("worker", "shop:jobs", env=env, cwd=shop) as worker:
            await asyncio.wait_for(asked.wait(), 30)
            worker.send(signal.SIGTERM)
            assert await worker.end() == 0
    assert "stopped before the worker had started" in worker.lines[-1]


async def test_a_loop_that_cannot_hear_signals_costs_one_warning(shop: Path, dsn: str) -> None:
    (shop / "deaf.py").write_text(
        "import asyncio\nfrom shop import jobs\n"
        "def refuse(*arguments):\n    raise NotImplementedError\n"
        "asyncio.SelectorEventLoop.add_signal_handler = refuse\n"
    )
    async with running("worker", "deaf:jobs", env=environment(PQRUN_DSN=dsn), cwd=shop) as worker:
        await worker.wait_line(STARTED)
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0
    assert len([line for line in worker.lines if "WARNING" in line]) == 1


async def test_queues_can_be_chosen(shop: Path, dsn: str, store: PgJobStore) -> None:
    left = await store.enqueue("pay", SECRET)
    sent = await store.enqueue("send", {"to": "x"}, queue="mail")
    async with running(
        "worker", "shop:jobs", "--queues", "mail, letters", env=environment(PQRUN_DSN=dsn), cwd=shop
    ) as worker:
        await worker.wait_line(f"done send id={sent}")
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0
    job = await store.get(left)
    assert job is not None
    assert job.status is Status.READY


async def test_uvloop_runs_the_same_jobs(shop: Path, dsn: str, store: PgJobStore) -> None:
    job_id = await store.enqueue("pay", SECRET)
    async with running("worker", "shop:jobs", "--uvloop", env=environment(PQRUN_DSN=dsn), cwd=shop) as worker:
        await worker.wait_line(f"done pay id={job_id}")
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0
    job = await store.get(job_id)
    assert job is not None
    assert job.result == {"number": 1, "loop": "uvloop"}


async def test_without_uvloop_the_pip_line_is_told(shop: Path) -> None:
    code, output = await run_command("worker", "shop:jobs", "--uvloop", cwd=shop, program=without("uvloop"))
    assert code == 1
    assert "pip install 'pqrun[uvloop]'" in output


async def test_a_bad_variable_costs_one_warning(shop: Path, dsn: str) -> None:
    env = environment(PQRUN_DSN=dsn, WORKER_CONCURRENCY="abc", WORKER_SHUTDOWN_GRACE="-1")
    async with running("worker", "shop:jobs", env=env, cwd=shop) as worker:
        await worker.wait_line("worker .* started: 1 slots")
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0
    assert len([line for line in worker.lines if "WORKER_CONCURRENCY='abc'" in line and "using 1 instead" in line]) == 1
    assert len([line for line in worker.lines if "WARNING" in line]) == 2


async def test_flags_win_over_the_environment(shop: Path, dsn: str) -> None:
    env = environment(PQRUN_DSN=dsn, WORKER_CONCURRENCY="3", WORKER_ENABLED="false")
    flags = ("--concurrency", "5", "--enabled")
    async with running("worker", "shop:jobs", *flags, env=env, cwd=shop) as worker:
        await worker.wait_line("worker .* started: 5 slots")
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0


@pytest.mark.parametrize(
    ("flags", "variables"), [((), {"WORKER_ENABLED": "false"}), (("--no-enabled",), {"WORKER_ENABLED": "true"})]
)
async def test_a_worker_that_is_switched_off_says_so_and_ends(
    shop: Path, flags: tuple[str, ...], variables: dict[str, str]
) -> None:
    code, output = await run_command("worker", "shop:jobs", *flags, env=environment(**variables), cwd=shop)
    assert code == 0
    assert "switched off" in output


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--concurrency", "0"),
        ("--concurrency", "abc"),
        ("--reap-interval", "0"),
        ("--stale-timeout", "-1"),
        ("--shutdown-grace", "nan"),
        ("--shutdown-timeout", "1e99"),
        ("--log-level", "loud"),
    ],
)
async def test_an_impossible_flag_is_wrong_usage_and_named(shop: Path, flag: str, value: str) -> None:
    code, output = await run_command("worker", "shop:jobs", flag, value, cwd=shop)
    assert code == 2
    assert flag in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("target", "code", "hint"),
    [
        ("shop", 2, "did you mean shop:jobs?"),
        ("shpo:jobs", 1, "there is no module shpo"),
        ("shop:job", 1, "did you mean shop:jobs?"),
        ("shop:other", 1, "expected an App, got an object of type object"),
    ],
)
async def test_a_wrong_target_is_explained(shop: Path, target: str, code: int, hint: str) -> None:
    found, output = await run_command("worker", target, cwd=shop)
    assert found == code
    assert hint in output
    assert "Traceback" not in output


async def test_an_error_of_the_module_shows_where_it_was_raised(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("jobs = 1 / 0\n")
    code, output = await run_command("worker", "wrong:jobs", cwd=tmp_path)
    assert code == 1
    assert "jobs = 1 / 0" in output
    assert "while importing wrong" in output


async def test_without_a_dsn_every_way_to_give_one_is_named(shop: Path) -> None:
    code, output = await run_command("worker", "shop:jobs", cwd=shop)
    assert code == 1
    assert all(way in output for way in ("App(dsn=", "PQRUN_DSN", "DATABASE_URL", "embedded:PATH"))
    assert "Traceback" not in output


async def test_a_database_without_our_tables_names_the_command(shop: Path, empty_dsn: str) -> None:
    code, output = await run_command("worker", "shop:jobs", env=environment(PQRUN_DSN=empty_dsn), cwd=shop)
    assert code == 1
    assert "run: pqrun migrate" in output
    assert "Traceback" not in output


async def test_a_database_that_is_away_is_told_without_the_password(shop: Path) -> None:
    env = environment(PQRUN_DSN="postgresql://shop:hunter2@127.0.0.1:1/shop")
    code, output = await run_command("worker", "shop:jobs", env=env, cwd=shop)
    assert code == 1
    assert "127.0.0.1:1/shop" in output
    assert "hunter2" not in output
    assert "Traceback" not in output


async def test_no_reaper_leaves_jobs_of_nobody_alone(shop: Path, dsn: str, connection: asyncpg.Connection) -> None:
    flags = ("--stale-timeout", "0.1", "--reap-interval", "0.1")
    job_id = await make_job(connection, status=Status.RUNNING, job_type="pay")
    env = environment(PQRUN_DSN=dsn)

    async def is_recovered() -> bool:
        return bool(await connection.fetchval("SELECT status <> 'RUNNING' FROM pqrun.jobs WHERE id = $1", job_id))

    async with running("worker", "shop:jobs", "--no-reaper-enabled", *flags, env=env, cwd=shop) as worker:
        await worker.wait_line(STARTED)
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0
    assert not await is_recovered()
    async with running("worker", "shop:jobs", *flags, env=env, cwd=shop) as worker:
        await worker.wait_line(STARTED)
        await wait_until(is_recovered)
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0
