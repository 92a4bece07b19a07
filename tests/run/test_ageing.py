"""When a starved lane has its turn. Time is handed in."""

from pqrun.run.ageing import AGEING_SECONDS, AGEING_SHARE, Ageing, Starved
from pqrun.store.claiming import Lane

LOW, LOWER = Lane("default", 0), Lane("default", -5)
LATER = AGEING_SECONDS + 1.0


def starving(*lanes: Lane) -> Ageing:
    ageing = Ageing()
    for number, lane in enumerate(lanes):
        ageing.passed_by([lane], 1, number * 0.001)
    return ageing


def test_nobody_has_a_turn_before_the_time() -> None:
    ageing = starving(LOW)
    ageing.passed_by([LOW], 1_000, AGEING_SECONDS - 0.1)
    assert ageing.due(AGEING_SECONDS - 0.1) == ([], 0)
    ageing.passed_by([LOW], AGEING_SHARE - 2, AGEING_SECONDS)
    assert ageing.due(AGEING_SECONDS) == ([], 0)  # starts before the time do not count
    ageing.passed_by([LOW], 1, AGEING_SECONDS)
    assert ageing.due(AGEING_SECONDS) == ([Starved(LOW, is_new=True)], 1)


def test_one_in_ten_starts_is_theirs_however_many_a_claim_brings() -> None:
    ageing = starving(LOW)
    turns = ordinary = 0
    while turns < 100:
        ageing.passed_by([LOW], 3, LATER)
        ordinary += 3
        _, starts = ageing.due(LATER)
        if starts:
            turns += starts
            ageing.served([LOW], LATER)
    assert turns * (AGEING_SHARE - 1) <= ordinary
    ageing.passed_by([LOW], 900, LATER)
    assert ageing.due(LATER)[1] == 100


def test_starved_lanes_take_turns_the_longest_wait_first() -> None:
    ageing = starving(LOW, LOWER)
    firsts = []
    for step in range(4):
        ageing.passed_by([LOW, LOWER], AGEING_SHARE, LATER)
        starved, _ = ageing.due(LATER)
        assert {one.lane for one in starved} == {LOW, LOWER}
        firsts.append(starved[0].lane)
        ageing.served([starved[0].lane], LATER + step)
    assert firsts == [LOW, LOWER, LOW, LOWER]


def test_a_lane_that_is_reached_is_starved_no_more_and_waits_anew() -> None:
    ageing = starving(LOW)
    ageing.reached([LOW, LOWER])
    assert ageing.is_idle
    ageing.passed_by([LOW], 100, LATER)
    assert ageing.due(LATER) == ([], 0)
    ageing.passed_by([LOW], 100, LATER + AGEING_SECONDS)
    assert ageing.due(LATER + AGEING_SECONDS)[0] == [Starved(LOW, is_new=True)]


def test_the_first_look_of_a_wait_begins_at_the_beginning() -> None:
    ageing = starving(LOW)
    ageing.passed_by([LOW], AGEING_SHARE, LATER)
    assert ageing.due(LATER)[0] == [Starved(LOW, is_new=True)]
    ageing.served([LOW], LATER)
    assert ageing.due(LATER) == ([], 0)
    ageing.passed_by([LOW], AGEING_SHARE, LATER)
    assert ageing.due(LATER)[0] == [Starved(LOW, is_new=False)]
