"""Processes that use synchronous calls: how they end, with the database there or not, and what their forked children do."""

import asyncio
import os

import pytest

from tests.support.database import Databases
from tests.support.proxy import Proxy, proxied
from tests.support.scripts import DEADLINE_SECONDS, output, script
from tests.support.waiting import wait_until

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


def test_a_script_that_closes_nothing_ends_quietly_and_leaves_no_connection(dsn: str) -> None:
    assert output("print(t.defer_sync(1).id)", dsn) == ["1"]


def test_a_script_that_fails_ends_with_its_own_error_alone(dsn: str) -> None:
    with script("t.defer_sync(1); raise SystemExit('done with it')", dsn) as process:
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, err) == (1, "done with it\n")


def test_a_job_can_be_deferred_while_the_interpreter_exits(dsn: str) -> None:
    text = """
        import atexit
        atexit.register(lambda: print(t.defer_sync(2).id))
        print(t.defer_sync(1).id)
    """
    assert output(text, dsn) == ["1", "2"]


def test_threads_that_still_wait_for_a_result_do_not_keep_the_process(dsn: str) -> None:
    text = """
        import threading
        job = t.defer_sync(1)
        def wait():
            try:
                job.result_sync()
            except Exception as error:
                print(type(error).__name__)
        threading.Thread(target=wait, daemon=True).start()
        while not (job.status_sync() and jobs._portal._own._store._asking[0]._waits):
            pass
    """
    assert set(output(text, dsn)) <= {"NotOpenError"}


@pytest.mark.parametrize("how", ["stalled", "reset"])
async def test_a_script_ends_within_seconds_though_the_database_is_gone(dsn: str, how: str) -> None:
    text = """
        t.defer_sync(1)
        t.handle(1).status_sync()
        print("ready", flush=True)
        sys.stdin.readline()
    """
    async with proxied(dsn) as proxy:
        with script(text, proxy.dsn) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
            assert len(proxy.open("pqrun")) == 2
            _take_away(proxy, how)
            process.stdin.write("\n")
            process.stdin.close()
            process.stdin = None
            await wait_until(lambda: process.poll() is not None, seconds=15)
            out, err = process.communicate()
    assert (process.returncode, out, err) == (0, "", "")


def _take_away(proxy: Proxy, how: str) -> None:
    if how == "stalled":
        proxy.is_deaf = True
        proxy.each(lambda one: one.stall())
    else:
        proxy.is_unreachable = True
        proxy.each(lambda one: one.reset())


@needs_fork
@pytest.mark.parametrize("how", ["os.fork", "multiprocessing"])
async def test_a_forked_child_has_connections_of_its_own_and_leaves_its_parents_alone(
    databases: Databases, dsn: str, how: str
) -> None:
    text = """
        def defer():
            return t.defer_sync(2).job_sync().payload

        first = t.defer_sync(1)
        if "HOW" == "os.fork":
            child = os.fork()
            if child == 0:
                assert defer() == {"a": 2}
                sys.exit(0)  # as the workers of a server that forks do: through atexit
            assert os.waitpid(child, 0)[1] == 0
        else:
            import multiprocessing
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert [pool.apply(defer) for _ in range(4)] == [{"a": 2}] * 4
        print(first.status_sync().value, t.defer_sync(3).job_sync().payload)
    """
    assert output(text.replace("HOW", how), dsn) == ["READY {'a': 3}"]
    assert await databases.connections(dsn) == []


@needs_fork
def test_a_child_that_was_forked_while_another_thread_started_ours_is_not_locked_out(dsn: str) -> None:
    text = """
        with jobs._portal._lock:  # as if held by a thread that the child has not
            child = os.fork()
            if child == 0:
                print(t.defer_sync(1).id, flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        print(t.defer_sync(2).id)
    """
    assert output(text, dsn) == ["1", "2"]


@needs_fork
def test_a_child_that_is_forked_by_a_plain_handler_defers_by_itself(dsn: str) -> None:
    text = """
        import asyncio

        @jobs.task
        def fork(ctx: JobContext) -> None:
            t.defer_sync(1)
            child = os.fork()
            if child == 0:
                print(t.defer_sync(2).job_sync().payload, flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0

        async def main():
            async with jobs.worker().lifespan():
                await (await fork.defer()).result(timeout=30)

        asyncio.run(main())
    """
    assert output(text, dsn) == ["{'a': 2}"]
