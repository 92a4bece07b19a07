"""When a schedule fires: daylight saving in three zones, missed firings, jitter, the rule in words, and what is refused."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pqrun.errors import OptionError
from pqrun.job.schedule import (
    CATCH_UP_MAX,
    ON_TIME,
    CatchUp,
    CronRule,
    EveryRule,
    Rule,
    check_catch_up,
    check_jitter,
    check_overlap,
    check_rule,
    firings,
    latest,
    plan_tick,
    preview,
    run_after,
    words,
)

SECOND, MINUTE, HOUR, DAY = (timedelta(**{unit: 1}) for unit in ("seconds", "minutes", "hours", "days"))


def at(text: str) -> datetime:
    """An instant of 2026, in UTC: ``"03-29 01:00"``."""
    return datetime.fromisoformat(f"2026-{text}+00:00")


def between(expression: str, zone: str | None, first: str, last: str) -> list[str]:
    """The firings in [first, last), as texts of the same form."""
    rule = check_rule(cron=expression, tz=zone)
    found = takewhile(lambda moment: moment < at(last), firings(rule, at(first) - SECOND))
    return [moment.strftime("%m-%d %H:%M") for moment in found]


# Clock changes of 2026: Berlin 03-29 and 10-25 at 01:00 UTC; New York 03-08 at 07:00 and 11-01 at 06:00 UTC; Lord Howe, by half an hour,
# 04-04 at 15:00 (back) and 10-03 at 15:30 UTC (on).

DST = [
    # F35: a time in the gap, moved out of it; a time in the repeated hour, the first time.
    ("30 2 * * *", "Europe/Berlin", "03-28 00:00", "03-31 00:00", ["03-28 01:30", "03-29 01:00", "03-30 00:30"]),
    ("30 2 * * *", "Europe/Berlin", "10-24 00:00", "10-27 00:00", ["10-24 00:30", "10-25 00:30", "10-26 01:30"]),
    ("30 2 * * *", "America/New_York", "03-07 00:00", "03-10 00:00", ["03-07 07:30", "03-08 07:00", "03-09 06:30"]),
    ("30 1 * * *", "America/New_York", "10-31 00:00", "11-03 00:00", ["10-31 05:30", "11-01 05:30", "11-02 06:30"]),
    ("15 2 * * *", "Australia/Lord_Howe", "10-02 00:00", "10-05 00:00", ["10-02 15:45", "10-03 15:30", "10-04 15:15"]),
    ("45 1 * * *", "Australia/Lord_Howe", "04-03 00:00", "04-06 00:00", ["04-03 14:45", "04-04 14:45", "04-05 15:15"]),
    # Several times of one gap are one firing; the first times of the repeated hour are all there are.
    ("*/15 2 * * *", "Europe/Berlin", "03-29 00:00", "03-29 12:00", ["03-29 01:00"]),
    ("*/20 2 * * *", "Europe/Berlin", "10-25 00:00", "10-25 12:00", ["10-25 00:00", "10-25 00:20", "10-25 00:40"]),
    # Each second hour is a list of times of the day.
    ("0 */2 * * *", "Europe/Berlin", "03-28 23:00", "03-29 05:00", ["03-28 23:00", "03-29 01:00", "03-29 02:00", "03-29 04:00"]),
    ("0 */2 * * *", "Europe/Berlin", "10-24 22:00", "10-25 04:00", ["10-24 22:00", "10-25 00:00", "10-25 03:00"]),
    # What names every hour runs in every real one.
    ("0 * * * *", "America/New_York", "03-08 05:00", "03-08 10:00", [f"03-08 {hour:02}:00" for hour in range(5, 10)]),
    ("0 * * * *", "America/New_York", "11-01 04:00", "11-01 09:00", [f"11-01 {hour:02}:00" for hour in range(4, 9)]),
    ("0 0-23 * * *", "Europe/Berlin", "10-24 23:00", "10-25 03:00", ["10-24 23:00", "10-25 00:00", "10-25 01:00", "10-25 02:00"]),
    # Where half an hour is repeated, what falls in it comes twice; where half an hour is left out, nothing stands in for it.
    ("45 * * * *", "Australia/Lord_Howe", "04-04 13:00", "04-04 17:00", ["04-04 13:45", "04-04 14:45", "04-04 15:15", "04-04 16:15"]),
    ("15 * * * *", "Australia/Lord_Howe", "10-03 14:00", "10-03 18:00", ["10-03 14:45", "10-03 16:15", "10-03 17:15"]),
    # A gap at midnight.
    ("0 0 * * *", "Africa/Cairo", "04-22 12:00", "04-25 12:00", ["04-22 22:00", "04-23 22:00", "04-24 21:00"]),
    # Without a zone: UTC, where no clock changes.
    ("30 2 * * *", None, "03-28 00:00", "03-31 00:00", ["03-28 02:30", "03-29 02:30", "03-30 02:30"]),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "zone", "first", "last", "expected"), DST)
def test_clock_changes(expression: str, zone: str | None, first: str, last: str, expected: list[str]) -> None:
    assert between(expression, zone, first, last) == expected


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize("day", ["03-08", "03-29", "04-04", "10-03", "10-25", "11-01"])
def test_a_quarter_hourly_schedule_has_four_ticks_in_every_real_hour(zone: str, day: str) -> None:
    rule = check_rule(cron="*/15 * * * *", tz=zone)
    start = at(f"{day} 00:00") - 12 * HOUR
    assert preview(rule, start - SECOND, 4 * 48) == [start + n * 15 * MINUTE for n in range(4 * 48)]


def test_the_repeated_hour_of_berlin_has_eight_quarters() -> None:
    quarters = between("*/15 * * * *", "Europe/Berlin", "10-25 00:00", "10-25 02:00")
    assert quarters == [f"10-25 {hour:02}:{minute:02}" for hour in (0, 1) for minute in (0, 15, 30, 45)]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"])
def test_a_daily_schedule_fires_once_for_each_day_of_the_year(zone: str) -> None:
    for expression in ("30 2 * * *", "0 0 * * *", "59 1 * * *", "15 2 * * *"):
        found = preview(check_rule(cron=expression, tz=zone), datetime(2025, 12, 31, tzinfo=ZoneInfo(zone)), 366)
        days = [moment.astimezone(ZoneInfo(zone)).date() for moment in found]
        assert days == [days[0] + n * DAY for n in range(366)]


EXPRESSIONS = [
    "30 2 * * *",
    "*/15 * * * *",
    "0 * * * *",
    "45 * * * *",
    "*/20 1-3 * * *",
    "0 */2 * * *",
    "30 1,2 * * 7",
    "*/30 * * * * *",
    "0 0 1 * *",
    "59 23 L * *",
    "10 2 * 3,10 SUN#5",
]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Kathmandu"]
RULES = st.one_of(
    st.builds(
        lambda expression, tz: check_rule(cron=expression, tz=tz), st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES)
    ),
    st.builds(lambda every: check_rule(every=every), st.timedeltas(SECOND, 30 * DAY)),
)
CHANGES = [
    "03-08 07:00",
    "03-29 01:00",
    "04-04 15:00",
    "04-23 22:00",
    "10-03 15:30",
    "10-25 01:00",
    "10-29 21:00",
    "11-01 06:00",
]
INSTANTS = st.builds(
    lambda change, offset: at(change) + offset,
    st.sampled_from(CHANGES),
    st.timedeltas(-3 * HOUR, 3 * HOUR) | st.timedeltas(-40 * DAY, 40 * DAY),
)


@settings(max_examples=300, deadline=None)
@given(rule=RULES, after=INSTANTS)
def test_firings_are_strictly_increasing_and_after_the_instant(rule: Rule, after: datetime) -> None:
    found = preview(rule, after, 40)
    assert len(found) == 40
    assert all(one < other for one, other in pairwise([after, *found]))


@settings(max_examples=300, deadline=None)
@given(rule=RULES, after=INSTANTS, skipped=st.integers(0, 30), part=st.floats(0, 0.999))
def test_whoever_asks_from_wherever_gets_the_same_firings(
    rule: Rule, after: datetime, skipped: int, part: float
) -> None:
    found = preview(rule, after, 40)
    later = found[skipped] + (found[skipped + 1] - found[skipped]) * part
    assert preview(rule, later, 40 - skipped - 1) == found[skipped + 1 :]


@settings(max_examples=200, deadline=None)
@given(
    minutes=st.sampled_from(["0", "30", "*/15", "7,45"]),
    hours=st.sampled_from(["*", "2", "1-3", "*/2"]),
    zone=st.sampled_from(ZONES),
    change=st.sampled_from(CHANGES),
)
def test_no_planned_time_is_lost_and_none_is_made_up(minutes: str, hours: str, zone: str, change: str) -> None:
    rule = check_rule(cron=f"{minutes} {hours} * * *", tz=zone)
    start, end = at(change) - 6 * HOUR, at(change) + 6 * HOUR
    found = set(takewhile(lambda moment: moment < end, firings(rule, start - SECOND)))
    shown = {
        start + n * MINUTE: (start + n * MINUTE).astimezone(ZoneInfo(zone)).replace(tzinfo=None) for n in range(12 * 60)
    }
    wanted = {m for m, wall in shown.items() if wall.minute in MINUTES[minutes] and wall.hour in HOURS[hours]}
    if hours == "*":
        assert found == wanted
        return
    # Times of the day: of each that the clock shows, the first instant; of those that it never shows, the end of the gap.
    firsts = set({shown[moment]: moment for moment in sorted(wanted, reverse=True)}.values())
    assert firsts <= found
    for extra in found - firsts:
        before = (extra - MINUTE).astimezone(ZoneInfo(zone)).utcoffset()
        assert before is not None
        assert extra.astimezone(ZoneInfo(zone)).utcoffset() != before


MINUTES = {"0": {0}, "30": {30}, "*/15": {0, 15, 30, 45}, "7,45": {7, 45}}
HOURS = {"*": set(range(24)), "2": {2}, "1-3": {1, 2, 3}, "*/2": set(range(0, 24, 2))}


@pytest.mark.parametrize(
    ("expression", "first"),
    [
        ("*/10 * * * * *", "01-01 00:00:10"),
        ("0 0 29 2 *", None),
        ("0 0 L * *", "01-31 00:00:00"),
        ("0 12 * * MON#1", "01-05 12:00:00"),
        ("0 9 * * MON-FRI", "01-01 09:00:00"),
    ],
)
def test_expressions_with_seconds_last_days_and_weekdays(expression: str, first: str | None) -> None:
    found = preview(check_rule(cron=expression), at("01-01 00:00"), 1)
    assert found == [
        datetime(2028, 2, 29, tzinfo=UTC) if first is None else datetime.fromisoformat(f"2026-{first}+00:00")
    ]


def test_every_counts_from_the_epoch_whatever_the_wall_clock_does() -> None:
    rule = check_rule(every=90 * MINUTE)
    assert preview(rule, at("03-29 00:10"), 2) == [at("03-29 01:30"), at("03-29 03:00")]
    assert preview(rule, at("03-29 01:30"), 1) == [at("03-29 03:00")]


def test_firings_end_where_the_calendar_does() -> None:
    rule = check_rule(cron="0 0 1 1 *")
    assert preview(rule, datetime(9998, 6, 1, tzinfo=UTC), 5) == [datetime(9999, 1, 1, tzinfo=UTC)]
    assert preview(check_rule(every=DAY), datetime(9999, 12, 30, 1, tzinfo=UTC), 5) == [
        datetime(9999, 12, 31, tzinfo=UTC)
    ]


# Missed firings.

HOURLY = check_rule(every=HOUR)
MINUTELY = check_rule(cron="* * * * *")


def times(moments: tuple[datetime, ...]) -> list[str]:
    return [moment.strftime("%H:%M") for moment in moments]


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [("skip", []), ("one", ["03:00"]), ("all", ["00:00", "01:00", "02:00", "03:00"])],
)
def test_three_hours_and_twenty_minutes_of_downtime(catch_up: CatchUp, expected: list[str]) -> None:
    tick = plan_tick(HOURLY, at("01-01 00:00"), at("01-01 03:20"), catch_up)
    assert times(tick.firings) == expected
    assert (tick.next_at, tick.has_missed) == (at("01-01 04:00"), True)


@pytest.mark.parametrize("catch_up", ["skip", "one", "all"])
def test_what_is_on_time_fires_whatever_the_rule_for_missed_firings(catch_up: CatchUp) -> None:
    for late in (timedelta(0), ON_TIME):
        tick = plan_tick(HOURLY, at("01-01 03:00"), at("01-01 03:00") + late, catch_up)
        assert (times(tick.firings), tick.next_at, tick.has_missed) == (["03:00"], at("01-01 04:00"), False)


@pytest.mark.parametrize("catch_up", ["skip", "one"])
def test_a_host_that_slept_five_minutes_makes_one_firing_of_a_minutely_schedule(catch_up: CatchUp) -> None:
    tick = plan_tick(MINUTELY, at("01-01 00:01"), at("01-01 00:06") + 3 * SECOND, catch_up)
    assert times(tick.firings) == ["00:06"]
    tick = plan_tick(MINUTELY, at("01-01 00:01"), at("01-01 00:06") + 30 * SECOND, catch_up)
    assert times(tick.firings) == ([] if catch_up == "skip" else ["00:06"])


def test_catching_up_with_all_is_bounded_and_takes_the_latest() -> None:
    rule = check_rule(cron="* * * * * *")
    now = at("07-01 00:00")
    tick = plan_tick(rule, at("01-01 00:00"), now, "all")
    assert len(tick.firings) == CATCH_UP_MAX
    assert tick.firings == tuple(now - n * SECOND for n in reversed(range(CATCH_UP_MAX)))


def test_nothing_is_fired_before_its_time_nor_without_a_plan() -> None:
    assert plan_tick(HOURLY, at("01-01 04:00"), at("01-01 03:00"), "all") == ((), at("01-01 04:00"), False)
    assert plan_tick(HOURLY, None, at("01-01 03:00"), "all") == ((), at("01-01 04:00"), False)


def test_a_planned_time_that_was_set_by_hand_fires_too() -> None:
    tick = plan_tick(HOURLY, at("01-01 03:07"), at("01-01 03:07") + SECOND, "skip")
    assert times(tick.firings) == ["03:07"]


@settings(max_examples=100, deadline=None)
@given(rule=RULES, after=INSTANTS, length=st.timedeltas(timedelta(0), 3 * HOUR), count=st.integers(1, 50))
def test_the_latest_firings_are_the_last_of_all(rule: Rule, after: datetime, length: timedelta, count: int) -> None:
    until = after + length
    every = list(takewhile(lambda moment: moment <= until, firings(rule, after)))
    assert latest(rule, after, until, count) == every[-count:]


# Jitter.


def test_jitter_is_the_same_for_every_worker_and_differs_by_name_and_time() -> None:
    planned = [at("01-01 00:00") + n * HOUR for n in range(50)]
    due = {(name, moment): run_after(name, moment, 10 * MINUTE) for name in ("a", "b") for moment in planned}
    assert due == {(name, moment): run_after(name, moment, 10 * MINUTE) for name, moment in due}
    offsets = {moment - planned for (_, planned), moment in due.items()}
    assert len(offsets) == 100
    assert all(timedelta(0) <= offset < 10 * MINUTE for offset in offsets)
    assert max(offsets) - min(offsets) > 8 * MINUTE


def test_jitter_does_not_depend_on_the_process() -> None:
    assert run_after("nightly", at("01-01 00:00"), HOUR) == datetime(2026, 1, 1, 0, 20, 42, 893511, tzinfo=UTC)
    assert run_after("nightly", at("01-01 00:00"), timedelta(0)) == at("01-01 00:00")


# Words and refusals.


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"cron": "30 2 * * *", "tz": "Europe/Berlin"}, "at 02:30 every day, Europe/Berlin"),
        ({"cron": "*/15 * * * *"}, "every 15th minute of every hour, UTC"),
        ({"every": HOUR}, "every hour"),
        ({"every": 90 * SECOND}, "every 1 minute 30 seconds"),
        ({"every": timedelta(days=2, seconds=1)}, "every 2 days 1 second"),
        ({"every": 1.5 * SECOND}, "every 1.5 seconds"),
    ],
)
def test_a_rule_in_words(options: dict[str, Any], expected: str) -> None:
    assert words(check_rule(**options)) == expected


def test_a_rule_is_stored_in_one_form() -> None:
    assert check_rule(cron="  30  2 * * * ") == CronRule("30 2 * * *", "UTC")
    assert check_rule(every=HOUR) == EveryRule(HOUR)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "cron or every: a schedule needs one of them"),
        ({"cron": "0 0 * * *", "every": HOUR}, "cron and every exclude each other"),
        ({"cron": "daily"}, "cron: expected an expression of five fields .* got 'daily': wrong number of fields"),
        ({"cron": "61 * * * *"}, "cron: .*bad minute"),
        ({"cron": "0 0 31 2 *"}, "cron: .*bad day-of-month"),
        ({"cron": ""}, "cron: .*wrong number of fields"),
        ({"cron": "1/0 * * * *"}, "cron: .*bad minute"),
        ({"cron": 5}, "cron: expected an expression such as '30 2 . . .'; got int"),
        ({"cron": "1" * 5000}, "cron: expected an expression of at most 200 characters; got one of 5000"),
        ({"cron": "0 0 * * *\x1b[2J"}, r"cron: .*\\x1b"),
        ({"cron": "0 0 * * *", "tz": "Europe/Atlantis"}, "tz: expected the name of a zone .* got 'Europe/Atlantis'"),
        ({"cron": "0 0 * * *", "tz": "Europe"}, "tz: .*'Europe'"),
        ({"cron": "0 0 * * *", "tz": "../../etc/passwd"}, "tz: "),
        ({"cron": "0 0 * * *", "tz": ""}, "tz: "),
        ({"cron": "0 0 * * *", "tz": UTC}, "tz: .* got timezone"),
        ({"every": timedelta(0)}, "every: expected a timedelta from 1 s to 366 days; got 0:00:00"),
        ({"every": -HOUR}, "every: "),
        ({"every": timedelta(milliseconds=1)}, "every: "),
        ({"every": timedelta(days=3650)}, "every: "),
        ({"every": 60}, "every: expected a timedelta; got int"),
        ({"every": HOUR, "tz": "UTC"}, "tz: goes with cron= only"),
        ({"tz": "UTC"}, "cron or every: "),
    ],
)
def test_what_is_refused_names_the_option(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check_rule(**options)


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (check_catch_up, "some", "catch_up: expected 'skip', 'one' or 'all'; got 'some'"),
        (check_overlap, None, "overlap: expected 'allow' or 'skip'; got None"),
        (check_jitter, 5, "jitter: expected a timedelta; got int"),
        (check_jitter, -SECOND, "jitter: expected a timedelta from 0 to 1 day"),
        (check_jitter, 2 * DAY, "jitter: "),
    ],
)
def test_what_is_refused_of_the_other_options(check: Any, value: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check(value)
