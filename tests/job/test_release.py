"""Which of two versions is the older one."""

import pytest

from pqrun.job.release import is_older_release, newest_release

IN_ORDER = ["0.9", "0.10.0.dev1", "0.10.0a1", "0.10.0b2", "0.10.0rc1", "0.10", "0.10.0.post1", "0.10.1", "1.0.0+local"]


def test_versions_come_in_order() -> None:
    for number, one in enumerate(IN_ORDER):
        assert [is_older_release(one, other) for other in IN_ORDER] == [number < n for n in range(len(IN_ORDER))], one


def test_zeros_at_the_end_and_what_is_local_make_no_difference() -> None:
    for one, other in (("0.10", "0.10.0"), ("1.0.0", "1.0.0+local")):
        assert not is_older_release(one, other)
        assert not is_older_release(other, one)


@pytest.mark.parametrize("strange", ["", "v1", "1.x", "1.0-2", "1\n", "1" * 40, "²"])
def test_what_cannot_be_read_is_neither_older_nor_newer(strange: str) -> None:
    assert not is_older_release("0.1", strange)
    assert not is_older_release(strange, "9.9")
    assert not is_older_release(None, strange)


def test_one_that_does_not_say_is_older_than_any_that_does() -> None:
    assert is_older_release(None, "0.1")
    assert not is_older_release("0.1", None)
    assert not is_older_release(None, None)


def test_the_newest_is_found_whatever_the_order() -> None:
    assert newest_release([None, *reversed(IN_ORDER), "strange"]) == IN_ORDER[-1]
    assert newest_release([None, None]) is None
    assert newest_release([]) is None
