"""What is kept of an exception: its type, message and place, the same on every machine and after every deploy that moves lines."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, field_validator

from pqrun.errors import HandlerTimeout
from pqrun.job.failure import MESSAGE_MAX, NAME_MAX, Failure, FailureKind, failure_of
from pqrun.job.signals import Abort

HERE = __name__


def raised_by(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:  # noqa: BLE001  # whatever it raises is what is looked at
        return error
    raise AssertionError("nothing was raised")


def of(function: Callable[[], object]) -> Failure:
    return failure_of(raised_by(function))


def place(failure: Failure) -> str:
    """Without the line."""
    assert failure.frame is not None
    return failure.frame.rpartition(":")[0]


def imported(folder: Path, name: str, text: str) -> ModuleType:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fails() -> None:
    raise ValueError("no such card")


def fails_elsewhere() -> None:
    raise ValueError("no such card")


class Shop:
    class ClosedError(Exception):
        pass

    def open(self) -> None:
        raise self.ClosedError("come back tomorrow")


def test_a_failure_has_the_type_the_message_and_the_innermost_place() -> None:
    failure = of(fails)
    line = fails.__code__.co_firstlineno + 1
    assert failure == Failure(FailureKind.ERROR, "ValueError", "no such card", f"{HERE}:fails:{line}")


def test_names_are_qualified() -> None:
    failure = of(Shop().open)
    assert failure.exception_type == f"{HERE}.Shop.ClosedError"
    assert place(failure) == f"{HERE}:Shop.open"
    assert of(lambda: 1 / 0).frame is not None
    assert "<lambda>" in place(of(lambda: 1 / 0))


def test_another_function_is_another_place() -> None:
    assert place(of(fails)) != place(of(fails_elsewhere))


SOURCE = "def handle():\n    return int('x')\n"


def test_moved_lines_and_another_folder_change_the_line_alone(tmp_path: Path) -> None:
    before = of(imported(tmp_path / "a", "tasks", SOURCE).handle)
    after = of(imported(tmp_path / "b" / "c", "tasks", "\n" * 40 + SOURCE).handle)
    assert (before.frame, after.frame) == ("tasks:handle:2", "tasks:handle:42")
    assert place(before) == place(after)


def test_two_processes_find_the_same_one_of_them_started_from_the_module_itself(tmp_path: Path) -> None:
    tell = """
        import json
        from pqrun.job.failure import failure_of
        class Odd(Exception): pass
        def handle():
            raise Odd("x")
        def tell():
            try:
                handle()
            except Odd as error:
                found = failure_of(error)
                print(json.dumps([found.exception_type, found.frame]))
        if __name__ == "__main__":
            tell()
    """
    (tmp_path / "tasks.py").write_text("\n".join(line[8:] for line in tell.splitlines()))
    commands = [["tasks.py"], ["-m", "tasks"], ["-c", "import tasks; tasks.tell()"]]
    told = [
        json.loads(
            subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, check=True, timeout=60).stdout
        )
        for command in commands
    ]
    assert told == [["tasks.Odd", "tasks:handle:6"]] * 3


def test_frames_of_libraries_and_of_pqrun_are_passed_over() -> None:
    class Order(BaseModel):
        card: str

        @field_validator("card")
        @classmethod
        def check(cls, value: str) -> str:
            raise LookupError(value)

    def parses() -> None:
        json.loads("{")

    name = "test_frames_of_libraries_and_of_pqrun_are_passed_over.<locals>"
    assert place(of(parses)) == f"{HERE}:{name}.parses"  # raised in json.decoder
    assert place(of(lambda: Order(card="x"))) == f"{HERE}:{name}.Order.check"  # called by pydantic
    assert place(of(lambda: Abort(""))) == f"{HERE}:{name}.<lambda>"  # raised in pqrun


def test_a_compiled_function_has_no_frame_its_caller_has(tmp_path: Path) -> None:
    module = imported(tmp_path, "tasks", "def handle():\n    return sorted([1, 'x'])\n")
    assert of(module.handle) == Failure(
        FailureKind.ERROR, "TypeError", "'<' not supported between instances of 'str' and 'int'", "tasks:handle:2"
    )


def test_a_compiled_module_that_names_its_source_is_not_taken_for_own_code() -> None:
    def handle() -> None:
        raising("site.pyx", "lib.fast", "/x/site-packages/lib/fast.so")()

    assert place(of(handle)).endswith("<locals>.handle")


def raising(filename: str, module: str | None, file: str | None) -> Callable[[], object]:
    """A function of another module, as its frames tell."""
    space: dict[str, Any] = {} if module is None else {"__name__": module}
    if file is not None:
        space["__file__"] = file
    exec(compile("def run(f=None):\n    if f: return f()\n    raise KeyError('x')", filename, "exec"), space)
    run: Callable[[], object] = space["run"]
    return run


def test_generated_code_is_not_own_code() -> None:
    def handle() -> None:
        exec("raise KeyError('x')", {"__name__": HERE})  # that is what is tested

    assert place(of(handle)).endswith("<locals>.handle")


def test_where_only_generated_code_is_there_its_innermost_frame_is_told() -> None:
    error = raised_by(raising("<string>", None, None))
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # without the frame of this test
    assert failure_of(error).frame == "<string>:run:3"


def test_a_program_that_is_itself_installed_is_own_code_below_what_it_uses() -> None:
    packages = "/srv/lib/python3/site-packages"
    program = raising(f"{packages}/shop/tasks.py", "shop.tasks", f"{packages}/shop/tasks.py")
    library = raising(f"{packages}/requests/api.py", "requests.api", f"{packages}/requests/api.py")
    error = raised_by(lambda: program(library))  # type: ignore[call-arg]  # it takes what it calls
    assert error.__traceback__ is not None
    assert error.__traceback__.tb_next is not None
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # without the two of this test
    assert failure_of(error).frame == "shop.tasks:run:2"


def test_an_error_from_within_pqrun_alone_has_no_place() -> None:
    assert failure_of(HandlerTimeout("t ran longer than its timeout of 1 s")).frame is None


def test_a_timeout_has_no_place_wherever_it_struck() -> None:
    timeout = HandlerTimeout("too long")
    timeout.__cause__ = raised_by(fails)
    assert failure_of(timeout, FailureKind.TIMEOUT) == Failure(
        FailureKind.TIMEOUT, "pqrun.errors.HandlerTimeout", "too long", None
    )


def test_what_was_never_raised_has_the_place_of_its_cause() -> None:
    error = LookupError("x")
    error.__cause__ = raised_by(fails)
    assert place(failure_of(error)) == f"{HERE}:fails"


def test_of_a_chain_it_is_the_outermost() -> None:
    def outer() -> None:
        try:
            fails()
        except ValueError as error:
            raise KeyError("outer") from error

    failure = of(outer)
    assert (failure.exception_type, failure.message) == ("KeyError", "'outer'")
    assert place(failure).endswith("<locals>.outer")


def test_a_group_is_itself() -> None:
    def gather() -> None:
        raise ExceptionGroup("batch", [ValueError("a"), KeyError("b")])

    failure = of(gather)
    assert (failure.exception_type, failure.message) == ("ExceptionGroup", "batch (2 sub-exceptions)")


def test_an_endless_recursion_is_one_place_at_whatever_depth_it_ends() -> None:
    def ping(n: int) -> int:
        return pong(n + 1)

    def pong(n: int) -> int:
        return ping(n + 1)

    def deeper(n: int) -> int:
        return deeper(n - 1) if n else ping(0)

    places = {place(of(lambda n=n: deeper(n))) for n in range(1)} | {place(of(lambda: ping(0)))}  # type: ignore[misc]
    assert places == {f"{HERE}:test_an_endless_recursion_is_one_place_at_whatever_depth_it_ends.<locals>.ping"}
    assert of(lambda: ping(0)).exception_type == "RecursionError"


def test_what_cannot_be_stored_is_escaped_and_what_is_long_is_cut() -> None:
    failure = failure_of(ValueError("bad \x00 byte \ud83d end" + "x" * 10_000))
    assert failure.message is not None
    assert failure.message.startswith("bad \\x00 byte \\ud83d end")
    assert (len(failure.message), failure.message[-1]) == (MESSAGE_MAX, "…")
    long = type("L" * 1000, (Exception,), {"__module__": "m\x00"})
    name = failure_of(long()).exception_type
    assert name is not None
    assert (len(name), name[:6]) == (NAME_MAX, "m\\x00.")
    assert failure_of(ValueError("x" * MESSAGE_MAX)).message == "x" * MESSAGE_MAX


def test_awkward_exceptions_are_described_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("never")

        __repr__ = __str__

    class Placeless(Exception):
        pass

    Placeless.__module__ = 7  # type: ignore[assignment]  # that is what is awkward
    assert failure_of(Mute()).message == "<its text could not be read>"
    assert failure_of(Placeless("x")).exception_type == f"{Placeless.__qualname__}"
    assert failure_of(KeyboardInterrupt()).exception_type == "KeyboardInterrupt"
