"""How far each lane was looked at. Time is handed in."""

from pqrun.run.cursor import LANES_MAX, SCAN_LEAST_SECONDS, SCAN_SHARE, TRAIL_SECONDS, Lanes
from pqrun.store.claiming import Lane, LaneLook

LANE = Lane("default", 0)


def make_lanes(*lanes: Lane, queues: list[str] | None = None) -> Lanes:
    made = Lanes(queues)
    made.add(lanes or [LANE])
    return made


def boundary(lanes: Lanes, now: float, lane: Lane = LANE) -> int:
    return dict(lanes.boundaries(now, from_start=False))[lane]


def test_a_new_lane_is_looked_at_from_its_beginning() -> None:
    assert make_lanes().boundaries(5.0, from_start=False) == [(LANE, 0)]


def test_the_boundary_trails_what_was_seen() -> None:
    lanes = make_lanes()
    lanes.looked([LaneLook(LANE, 100)], 10.0)
    assert boundary(lanes, 10.0) == 0
    assert boundary(lanes, 10.0 + TRAIL_SECONDS - 0.001) == 0
    assert boundary(lanes, 10.0 + TRAIL_SECONDS) == 100


def test_the_boundary_is_never_beyond_what_was_seen_a_trail_ago_however_often_it_was_looked() -> None:
    lanes = make_lanes()
    looks = [(10.0 + step * 0.01, step * 10) for step in range(1, 200)]
    for now, place in looks:
        lanes.looked([LaneLook(LANE, place)], now)
        seen = max((p for at, p in looks if at <= now - TRAIL_SECONDS + 1e-9), default=0)
        assert boundary(lanes, now) <= seen
    assert boundary(lanes, 20.0) > 1_900  # and it does follow


def test_a_claim_from_the_start_ignores_the_boundaries_but_keeps_them() -> None:
    lanes = make_lanes()
    lanes.looked([LaneLook(LANE, 100)], 10.0)
    assert lanes.boundaries(20.0, from_start=True) == [(LANE, 0)]
    assert boundary(lanes, 20.0) == 100


def test_rows_found_below_the_boundary_take_it_back() -> None:
    lanes = make_lanes()
    lanes.looked([LaneLook(LANE, 100)], 10.0)
    assert boundary(lanes, 11.0) == 100
    lanes.looked([LaneLook(LANE, 40)], 11.0)
    assert boundary(lanes, 12.0) == 40


def test_rows_found_below_what_is_still_trailing_take_it_back_too() -> None:
    lanes = make_lanes()
    lanes.looked([LaneLook(LANE, 100)], 10.0)
    lanes.looked([LaneLook(LANE, 40)], 10.1)
    assert boundary(lanes, 11.0) == 40


def test_a_claim_that_was_not_filled_takes_no_boundary_back() -> None:
    lanes = make_lanes()
    lanes.looked([LaneLook(LANE, 100)], 10.0)
    lanes.looked([LaneLook(LANE, 40)], 10.1, is_filled=False)
    assert boundary(lanes, 11.0) == 100
    lanes.looked([LaneLook(LANE, 40)], 11.1, is_filled=False)
    assert boundary(lanes, 12.0) == 100


def test_a_walk_goes_on_where_the_farthest_look_ended_and_counts_as_part_of_the_scan_that_led_to_it() -> None:
    high = Lane("default", 5)
    lanes = make_lanes(LANE, high)
    lanes.scanning()
    lanes.scanned(10.0, 10.0)
    lanes.cut([LaneLook(LANE, 100), LaneLook(high, 50)])
    lanes.cut([LaneLook(LANE, 70)])
    assert lanes.walks() == [(high, 50), (LANE, 100)]
    assert not lanes.is_scan_due(10.0 + SCAN_LEAST_SECONDS - 0.01)
    lanes.walked([high, LANE], [LaneLook(LANE, 200)], 0.4, 10.5)
    assert lanes.walks() == [(LANE, 200)]
    lanes.walked([LANE], [], 0.6, 11.0)
    assert lanes.walks() == []
    assert not lanes.is_scan_due(11.0 + SCAN_SHARE - 0.01)
    assert lanes.is_scan_due(11.0 + SCAN_SHARE)


def test_a_full_claim_from_the_start_makes_higher_priorities_that_gave_nothing_be_walked_through() -> None:
    high, higher, low = Lane("default", 5), Lane("default", 9), Lane("default", -5)
    lanes = make_lanes(LANE, high, higher, low)
    lanes.boundaries(0.0, from_start=True)
    lanes.filled(LANE, 10, 0.0)
    assert lanes.walks(is_full=True) == []
    lanes.filled(LANE, 10, 0.0, yielded={high, LANE})
    assert lanes.walks(is_full=True) == [(higher, 0)]
    lanes.cut([LaneLook(low, 30)])
    assert lanes.walks(is_full=True) == [(higher, 0)]
    assert lanes.walks() == [(higher, 0), (low, 30)]


def test_other_queues_end_the_walks() -> None:
    lanes = make_lanes()
    lanes.cut([LaneLook(LANE, 100)])
    lanes.serve(None)
    assert lanes.walks() == []


def test_a_claim_from_the_start_comes_at_once_and_then_every_two_seconds() -> None:
    lanes = make_lanes()
    assert lanes.is_scan_due(0.0)
    lanes.scanned(10.0, 10.001)
    assert not lanes.is_scan_due(10.001 + SCAN_LEAST_SECONDS - 0.01)
    assert lanes.is_scan_due(10.001 + SCAN_LEAST_SECONDS)


def test_a_slow_claim_from_the_start_is_made_less_often() -> None:
    lanes = make_lanes()
    lanes.scanned(10.0, 11.0)
    assert not lanes.is_scan_due(11.0 + SCAN_SHARE - 0.1)
    assert lanes.is_scan_due(11.0 + SCAN_SHARE)


def test_the_time_until_the_next_claim_from_the_start_is_known() -> None:
    lanes = make_lanes()
    lanes.scanned(10.0, 10.0)
    assert lanes.scan_in(11.0) == SCAN_LEAST_SECONDS - 1.0
    assert lanes.scan_in(100.0) == 0.0


def test_a_claim_from_the_start_can_be_asked_for() -> None:
    lanes = make_lanes()
    lanes.scanned(10.0, 10.0)
    lanes.scan_soon()
    assert lanes.is_scan_due(10.0)


def test_a_scan_that_is_asked_for_while_one_is_under_way_comes_after_it() -> None:
    lanes = make_lanes()
    lanes.scanning()
    lanes.scan_soon()
    lanes.scanned(10.0, 10.0)
    assert lanes.is_scan_due(10.0)
    assert lanes.scan_in(10.0) == 0.0
    lanes.scanning()
    assert lanes.is_scan_due(10.0)  # until it has succeeded
    lanes.scanned(10.0, 10.0)
    assert not lanes.is_scan_due(10.0)


def test_higher_priorities_come_first_and_queues_of_one_priority_take_turns() -> None:
    a, b, c, urgent = Lane("a", 0), Lane("b", 0), Lane("c", 0), Lane("c", 9)
    lanes = make_lanes(a, b, c, urgent)
    orders = []
    for _ in range(3):
        orders.append([lane for lane, _ in lanes.boundaries(0.0, from_start=False)])
        lanes.filled(orders[-1][1], 1, 0.0)
    assert all(order[0] == urgent for order in orders)
    assert {order[1] for order in orders} == {a, b, c}


def test_queues_of_one_priority_share_it_evenly_whatever_idle_queues_lie_between() -> None:
    busy = [Lane("a", 0), Lane("b", 0)]
    lanes = make_lanes(*busy, *(Lane(f"idle{number}", 0) for number in range(20)))
    served = []
    for _ in range(20):
        order = [lane for lane, _ in lanes.boundaries(0.0, from_start=False)]
        served.append(next(lane for lane in order if lane in busy))
        lanes.filled(served[-1], 1, 0.0)
    assert served == busy * 10


def test_a_full_claim_from_a_forgotten_lane_is_passed_over() -> None:
    lanes = make_lanes()
    lanes.boundaries(0.0, from_start=False)
    lanes.filled(Lane("gone", 3), 1, 0.0)
    assert len(lanes) == 1


def test_only_lanes_of_the_queues_that_are_served_are_kept() -> None:
    lanes = make_lanes(Lane("mine", 0), Lane("other", 0), queues=["mine"])
    assert len(lanes) == 1


def test_adding_a_known_lane_keeps_its_boundary() -> None:
    lanes = make_lanes()
    lanes.looked([LaneLook(LANE, 100)], 10.0)
    lanes.add([LANE])
    assert boundary(lanes, 11.0) == 100


def test_lanes_are_bounded_and_those_seen_last_stay() -> None:
    lanes = make_lanes()
    lanes.add(Lane(f"q{number}", 0) for number in range(LANES_MAX))
    lanes.add([Lane("q0", 0)])
    lanes.add([Lane("new", 0)])
    assert len(lanes) == LANES_MAX
    known = {lane.queue for lane, _ in lanes.boundaries(0.0, from_start=False)}
    assert {"q0", "new"} <= known
    assert not {"default", "q1"} & known


def test_a_look_at_a_forgotten_lane_is_passed_over() -> None:
    lanes = make_lanes()
    lanes.looked([LaneLook(Lane("gone", 3), 7)], 1.0)
    assert len(lanes) == 1


def test_a_lane_that_is_forgotten_while_it_waits_is_forgotten_by_ageing_too() -> None:
    high = Lane("high", 9)
    lanes = make_lanes(high, LANE)
    lanes.boundaries(0.0, from_start=False)
    lanes.filled(high, 1, 0.0)
    lanes.add([high, *(Lane(f"q{number}", 0) for number in range(LANES_MAX))])
    assert LANE not in dict(lanes.boundaries(0.0, from_start=False))
    assert not [lane for ageing in lanes._ageing.values() for lane in ageing._waits if lane == LANE]
