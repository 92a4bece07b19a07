"""How long a statement may take: short, longer for a slow database, short again."""

from pqrun.store.connecting import COMMAND_SECONDS
from pqrun.store.patience import FIRST_SECONDS, MOST_SECONDS, Patience


def test_the_limit_grows_while_nobody_answers_and_falls_back_with_the_first_answer() -> None:
    patience = Patience()
    limits = []
    for _ in range(6):
        limits.append(patience.seconds)
        patience.ran_out()
    assert limits[0] == FIRST_SECONDS
    assert limits[1] == 2 * FIRST_SECONDS
    assert limits[-1] == MOST_SECONDS
    patience.answered()
    assert patience.seconds == FIRST_SECONDS


def test_the_longest_limit_is_that_of_any_statement() -> None:
    assert MOST_SECONDS == COMMAND_SECONDS
