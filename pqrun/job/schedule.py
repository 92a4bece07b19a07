"""When a schedule fires: rules over instants. No clock, no database; whoever asks says what time it is.

A rule gives the same instants whoever asks and from wherever he starts, so any number of workers agree on them.

Daylight saving. An expression whose hour field names every hour (``*/15 * * * *``) fires whenever the wall clock shows one of its times:
in every hour that really passes, the repeated one included. Any other (``30 2 * * *``) names times of a day, and each fires exactly once:
in a gap at the first instant after it, in a repeated hour the first time. ``every`` counts real time from 1970-01-01T00:00Z.
"""

import hashlib
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile
from typing import Final, Literal, NamedTuple, NoReturn, TypeAlias
from zoneinfo import ZoneInfo

import msgspec

from pqrun.errors import OptionError
from pqrun.job.storable import one_line

__all__ = [
    "CATCH_UP_MAX",
    "EVERY_MAX",
    "EVERY_MIN",
    "JITTER_MAX",
    "ON_TIME",
    "CatchUp",
    "CronRule",
    "EveryRule",
    "Overlap",
    "Rule",
    "Tick",
    "check_catch_up",
    "check_jitter",
    "check_overlap",
    "check_rule",
    "firings",
    "latest",
    "plan_tick",
    "preview",
    "run_after",
    "words",
]

CatchUp: TypeAlias = Literal["skip", "one", "all"]
Overlap: TypeAlias = Literal["allow", "skip"]

CATCH_UP_MAX: Final = 1_000
"""Firings that ``catch_up="all"`` makes up for at most: the latest ones."""

ON_TIME: Final = timedelta(seconds=10)
"""A firing that is no later than this was not missed: workers look at least that often, whatever they do not hear."""

EVERY_MIN: Final = timedelta(seconds=1)
EVERY_MAX: Final = timedelta(days=366)
JITTER_MAX: Final = timedelta(days=1)

CRON_MAX_LENGTH: Final = 200

NEVER: Final = datetime(9999, 12, 30, tzinfo=UTC)
"""The next firing of a rule that has none any more: the last day that every column and zone can hold."""

_CATCH_UPS: Final[tuple[CatchUp, ...]] = ("skip", "one", "all")
_OVERLAPS: Final[tuple[Overlap, ...]] = ("allow", "skip")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
_EVERY_HOUR: Final = frozenset(range(24))
_PROBE: Final = datetime(2024, 1, 1, tzinfo=UTC)  # the year of a leap day; for the question whether a rule ever fires


class CronRule(msgspec.Struct, frozen=True):
    """At the times of a cron expression on the wall clock of a zone; make it with ``check_rule``."""

    expression: str
    """Five fields (minute hour day month weekday), or six with seconds first."""
    tz: str
    """A name of the zone database, such as ``"Europe/Berlin"``."""


class EveryRule(msgspec.Struct, frozen=True):
    """At every multiple of a duration since 1970-01-01T00:00Z; make it with ``check_rule``."""

    every: timedelta


Rule: TypeAlias = CronRule | EveryRule


class Tick(NamedTuple):
    """What is to be done about a schedule at a moment: the firings to make, oldest first, and the next planned time."""

    firings: tuple[datetime, ...]
    next_at: datetime
    has_missed: bool
    """Whether firings were missed, be they made up for or not."""


def check_rule(*, cron: object = None, every: object = None, tz: object = None) -> Rule:
    """Check the options of a rule as users write them: one of ``cron`` and ``every``, ``tz`` with cron; raises OptionError."""
    if cron is not None and every is not None:
        raise OptionError("cron and every exclude each other: give one of them")
    if every is not None:
        if tz is not None:
            raise OptionError("tz: goes with cron= only; every= counts real time, which has no zone")
        return EveryRule(_checked_every(every))
    if cron is None:
        raise OptionError(
            "cron or every: a schedule needs one of them, such as cron='30 2 * * *' or every=timedelta(hours=1)"
        )
    return _checked_cron(cron, "UTC" if tz is None else _checked_zone(tz))


def _checked_every(every: object) -> timedelta:
    if not isinstance(every, timedelta):
        _refuse("every", "a timedelta", type(every).__name__)
    if not EVERY_MIN <= every <= EVERY_MAX:
        _refuse("every", f"a timedelta from {EVERY_MIN.seconds} s to {EVERY_MAX.days} days", str(every))
    return every


def _checked_zone(tz: object) -> str:
    if not isinstance(tz, str):
        _refuse("tz", "the name of a zone, such as 'Europe/Berlin'", type(tz).__name__)
    try:
        return ZoneInfo(tz).key
    except (KeyError, ValueError, OSError):  # unknown; a path or NUL; a folder of zones
        _refuse("tz", "the name of a zone that this machine knows, such as 'Europe/Berlin'", repr(tz))


def _checked_cron(cron: object, tz: str) -> CronRule:
    from cronsim import CronSim, CronSimError  # only those who have schedules pay for it

    if not isinstance(cron, str):
        _refuse("cron", "an expression such as '30 2 * * *'", type(cron).__name__)
    expression = " ".join(cron.split())
    if len(expression) > CRON_MAX_LENGTH:
        _refuse("cron", f"an expression of at most {CRON_MAX_LENGTH} characters", f"one of {len(expression)}")
    try:
        CronSim(expression, _PROBE)
    except CronSimError as error:
        reason = str(error)
        reason = f"{reason[:1].lower()}{reason[1:]}"
    except (ValueError, AssertionError):  # what its parser did not foresee
        reason = "not an expression"
    else:
        rule = CronRule(expression, tz)
        if next(firings(rule, _PROBE), None) is not None:
            return rule
        reason = "it never fires"
    expected = "an expression of five fields (minute hour day month weekday), or six with seconds first"
    raise OptionError(f"cron: expected {expected}; got {_shown(repr(cron))}: {reason}")


def check_catch_up(value: object) -> CatchUp:
    """Check what becomes of missed firings; raises OptionError."""
    for choice in _CATCH_UPS:
        if value == choice:
            return choice
    return _refuse("catch_up", "'skip', 'one' or 'all'", repr(value))


def check_overlap(value: object) -> Overlap:
    """Check what a firing does while the last one's job is still active; raises OptionError."""
    for choice in _OVERLAPS:
        if value == choice:
            return choice
    return _refuse("overlap", "'allow' or 'skip'", repr(value))


def check_jitter(value: object) -> timedelta:
    """Check by how much a firing's job may be put off; raises OptionError."""
    if not isinstance(value, timedelta):
        _refuse("jitter", "a timedelta", type(value).__name__)
    if not timedelta(0) <= value <= JITTER_MAX:
        _refuse("jitter", f"a timedelta from 0 to {JITTER_MAX.days} day", str(value))
    return value


def firings(rule: Rule, after: datetime) -> Iterator[datetime]:
    """Give the planned instants strictly after an aware one, in UTC, strictly increasing; it ends where the calendar does."""
    after = after.astimezone(UTC)
    try:
        yield from _every(rule.every, after) if isinstance(rule, EveryRule) else _cron(rule, after)
    except OverflowError:  # year 10000
        return


def preview(rule: Rule, after: datetime, count: int) -> list[datetime]:
    """Return the next ``count`` planned instants, in UTC."""
    return list(islice(firings(rule, after), count))


def latest(rule: Rule, after: datetime, until: datetime, count: int) -> list[datetime]:
    """Return the last ``count`` firings in (after, until], oldest first, without walking through all that lie between."""
    span = timedelta(seconds=64)
    while True:
        start = max(after, until - span)
        found = deque(takewhile(lambda instant: instant <= until, firings(rule, start)), maxlen=count)
        if len(found) == count or start == after:
            return list(found)
        span *= 4


def plan_tick(rule: Rule, next_at: datetime | None, now: datetime, catch_up: CatchUp) -> Tick:
    """Decide what to fire at ``now`` where ``next_at`` was planned next (None: nothing yet, so only the next is planned).

    What is no later than ``ON_TIME`` fires. What is later was missed: "skip" drops it, "one" makes one firing of it, unless one on
    time follows anyway, and "all" makes up for all, the latest ``CATCH_UP_MAX`` at most.
    """
    following = next(firings(rule, now), NEVER)
    if next_at is None or next_at > now:
        return Tick((), following if next_at is None else next_at, has_missed=False)
    # next_at itself counts whether or not it is on the rule's grid: somebody may have set it by hand.
    due = latest(rule, next_at, now, CATCH_UP_MAX)
    if len(due) < CATCH_UP_MAX:
        due.insert(0, next_at)
    on_time = [instant for instant in due if now - instant <= ON_TIME]
    chosen = due if catch_up == "all" else on_time
    if catch_up == "one" and not on_time:
        chosen = due[-1:]
    return Tick(tuple(chosen), following, has_missed=len(on_time) < len(due))


def run_after(name: str, planned: datetime, jitter: timedelta) -> datetime:
    """Return when the job of a firing is due: its planned time, put off by a part of ``jitter`` that depends on both alone."""
    if not jitter:
        return planned
    microseconds = (planned - _EPOCH) // _MICROSECOND
    digest = hashlib.sha256(f"{name}\0{microseconds}".encode()).digest()
    return planned + jitter * (int.from_bytes(digest[:6]) / 2**48)


def words(rule: Rule) -> str:
    """Return the rule in words, such as ``"at 02:30 every day, Europe/Berlin"``."""
    if isinstance(rule, EveryRule):
        return f"every {_duration(rule.every)}"
    from cronsim import CronSim  # only those who have schedules pay for it

    said = CronSim(rule.expression, _PROBE).explain()
    return f"{said[:1].lower()}{said[1:]}, {rule.tz}"


def _duration(every: timedelta) -> str:
    left = every // _MICROSECOND
    parts = []
    for unit, size in (("day", 86_400_000_000), ("hour", 3_600_000_000), ("minute", 60_000_000)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}{'s' if count > 1 else ''}")
    if left:
        parts.append("1 second" if left == 1_000_000 else f"{left / 1_000_000:g} seconds")
    return " ".join(parts).removeprefix("1 ") if len(parts) == 1 else " ".join(parts)


def _every(every: timedelta, after: datetime) -> Iterator[datetime]:
    instant = _EPOCH + ((after - _EPOCH) // every + 1) * every
    while True:
        yield instant
        instant += every


def _cron(rule: CronRule, after: datetime) -> Iterator[datetime]:
    from cronsim import CronSim  # only those who have schedules pay for it

    zone = ZoneInfo(rule.tz)
    if CronSim(rule.expression, _PROBE).hours >= _EVERY_HOUR:
        return _in_every_hour(rule.expression, zone, after)
    return _at_named_times(rule.expression, zone, after)


def _at_named_times(expression: str, zone: tzinfo, after: datetime) -> Iterator[datetime]:
    from cronsim import CronSim  # see above

    last = after
    # Without a zone the expression knows of no clock change: the rules for those are ours.
    for wall in CronSim(expression, after.astimezone(zone).replace(tzinfo=None)):
        instant = _first_instant(wall, zone)
        if (
            instant > last
        ):  # several times of one gap come to the same instant, and a repeated hour has been once before
            last = instant
            yield instant


def _first_instant(wall: datetime, zone: tzinfo) -> datetime:
    """Return the first instant at which the wall clock shows this, or the end of the gap that it falls in."""
    instant = wall.replace(tzinfo=zone).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == wall:
        return instant
    return _change(zone, wall.replace(tzinfo=zone, fold=1).astimezone(UTC), instant)


def _in_every_hour(expression: str, zone: tzinfo, after: datetime) -> Iterator[datetime]:
    from cronsim import CronSim  # see above

    at = after.replace(microsecond=0) + _SECOND  # from here on, itself included
    is_changed = True
    while is_changed:
        is_changed = False
        offset = _offset(zone, at)
        for wall in CronSim(expression, (at + offset - _SECOND).replace(tzinfo=None)):
            instant = wall.replace(tzinfo=UTC) - offset
            change = _first_change(zone, at, instant)
            if change is not None:  # the wall clock jumps before it shows this: look again from there
                at, is_changed = change, True
                break
            yield instant
            at = instant


def _first_change(zone: tzinfo, at: datetime, until: datetime) -> datetime | None:
    """Return the first instant in (at, until] with another offset; two changes within a day are none to us."""
    offset = _offset(zone, at)
    while at < until:
        ahead = min(at + _DAY, until)
        if _offset(zone, ahead) != offset:
            return _change(zone, at, ahead)
        at = ahead
    return None


def _change(zone: tzinfo, before: datetime, after: datetime) -> datetime:
    """Return the first whole second with the offset of ``after``, between two instants whose offsets differ."""
    offset = _offset(zone, after)
    while after - before > _SECOND:
        middle = before + (after - before) // _SECOND // 2 * _SECOND
        if _offset(zone, middle) == offset:
            after = middle
        else:
            before = middle
    return after


def _offset(zone: tzinfo, instant: datetime) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta(0)


def _shown(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= 80 else f"{line[:80]}…"


def _refuse(option: str, expected: str, came: str) -> NoReturn:
    raise OptionError(f"{option}: expected {expected}; got {_shown(came)}")
