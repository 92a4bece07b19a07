"""What the profiler says, read."""

from benchmarks.profiles import read_stacks

RECORDED = [
    "thread (0x1): MainThread;main (serve.py:10);run (asyncio/runners.py:118);Executor._start (pqrun/run/execute.py:120) 3",
    "thread (0x1): MainThread;main (serve.py:10);run (asyncio/runners.py:118);Executor._start (pqrun/run/execute.py:121) 4",
    "thread (0x1): MainThread;main (serve.py:10);run (asyncio/runners.py:118) 2",
    "thread (0x2): pqrun keeper;run (threading.py:900);select (selectors.py:468) 50",
    "not a stack",
]


def test_samples_count_for_the_innermost_function_of_the_main_thread() -> None:
    stacks = read_stacks(RECORDED)
    assert stacks.samples == 9
    assert stacks.packages == {"pqrun": 7, "asyncio": 2}
    assert stacks.functions == {"Executor._start (run/execute.py)": 7, "run (asyncio/runners.py)": 2}
