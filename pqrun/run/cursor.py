"""How far each lane was looked at: the boundary that keeps a claim's cost flat while dead rows pile up under a held snapshot.

A place is taken from a sequence before its transaction commits, so a lower place can become visible after a higher one. Therefore the
boundary that a claim uses trails what was seen by TRAIL_SECONDS; and every now and then a claim starts from the beginning, to find what
committed later still, what came back below the cursor (released, recovered), and new lanes.

A claim looks at a bounded number of rows in a lane. Where that ended among rows that are not for this worker, such as those of a paused
task, a walk goes on behind them, piece by piece, and its time counts as the scan's that led to it: so they hide nothing for ever.
"""

from collections import deque
from collections.abc import Container, Iterable

from pqrun.run.ageing import Ageing
from pqrun.run.groups import SHARED, GroupName
from pqrun.store.claiming import Lane, LaneLook

__all__ = ["Lanes"]

TRAIL_SECONDS = 0.25
"""How far the boundary trails behind the last place seen: nearly all transactions that insert jobs are shorter."""

MARK_SECONDS = 0.025
"""How often a mark of the trail is taken."""

SCAN_LEAST_SECONDS = 2.0
"""The shortest time between two claims from the start."""

SCAN_SHARE = 20.0
"""A claim from the start may take one part in so many of a worker's time."""

LANES_MAX = 2_000
"""Lanes remembered; the ones not seen for longest are forgotten (their next claim starts from the beginning)."""


class _Cursor:
    """The trail of one lane: (time, place) marks, oldest first, above the floor that claims start from."""

    __slots__ = ("_floor", "_marks", "turn")

    def __init__(self) -> None:
        self.turn = 0  # the full claim that reached this lane last
        self._floor = 0
        self._marks: deque[tuple[float, int]] = deque()

    def look(self, place: int, now: float, *, is_filled: bool) -> None:
        if is_filled:
            # By rows below what was seen before: there may be more of them, go on from there.
            self._floor = min(self._floor, place)
            while self._marks and self._marks[-1][1] > place:
                self._marks.pop()
        elif place < max(self._floor, self._marks[-1][1] if self._marks else 0):
            return  # it ended among rows that are not for us, and what is behind them was seen before
        if not self._marks or now - self._marks[-1][0] >= MARK_SECONDS:
            self._marks.append((now, place))

    def boundary(self, now: float) -> int:
        """Return the highest place that was seen at least TRAIL_SECONDS ago."""
        while self._marks and self._marks[0][0] <= now - TRAIL_SECONDS:
            self._floor = max(self._floor, self._marks.popleft()[1])
        return self._floor


class Lanes:
    """All lanes that a worker knows, with their cursors. Times are monotonic seconds, handed in.

    ``own``: queues that are groups of their own, each claimed for by itself.
    """

    def __init__(self, queues: Iterable[str] | None, own: Iterable[str] = ()) -> None:
        self._cursors: dict[Lane, _Cursor] = {}
        self._turn = 0  # counts full claims
        self._order: list[Lane] = []  # of the last claim
        self._next_scan = 0.0
        self._is_scan_asked = False
        self._walks: dict[GroupName, dict[Lane, int]] = {}  # by lane, the place behind which to go on
        self._filled_to: dict[GroupName, int] = {}  # the lowest priority that the last full claim reached
        self._walk_seconds = 0.0  # what the walks under way have taken
        self.serve(queues, own)

    def serve(self, queues: Iterable[str] | None, own: Iterable[str] = ()) -> None:
        """Keep the lanes of these queues only."""
        self._queues = None if queues is None else frozenset(queues)
        self._own = frozenset(own)
        self._ageing: dict[GroupName, Ageing] = {group: Ageing() for group in (SHARED, *self._own)}
        self._walks.clear()
        known, self._cursors = self._cursors, {}
        self._cursors = {lane: cursor for lane, cursor in known.items() if self._serves(lane)}

    def _serves(self, lane: Lane) -> bool:
        return self._queues is None or lane.queue in self._queues

    def _group_of(self, lane: Lane) -> GroupName:
        return lane.queue if lane.queue in self._own else SHARED

    def __len__(self) -> int:
        return len(self._cursors)

    def add(self, lanes: Iterable[Lane]) -> None:
        """Remember lanes; those already known keep their cursor."""
        for lane in lanes:
            if self._serves(lane):
                known = self._cursors.pop(lane) if lane in self._cursors else _Cursor()
                self._cursors[lane] = known  # now the one seen last
        while len(self._cursors) > LANES_MAX:
            forgotten = next(iter(self._cursors))
            del self._cursors[forgotten]
            self._ageing[self._group_of(forgotten)].reached([forgotten])  # it waits for nothing that anybody looks for
            self._walks.get(self._group_of(forgotten), {}).pop(forgotten, None)

    def is_scan_due(self, now: float) -> bool:
        """Whether the next claim should start from the beginning."""
        return self._is_scan_asked or now >= self._next_scan

    def scanning(self) -> None:
        """Note that one begins: what is asked for from now on is not answered by it, and one that fails is still due."""
        self._is_scan_asked = False
        self._next_scan = 0.0

    def scanned(self, started: float, now: float) -> None:
        """Note a claim from the start, with the survey before it: the longer it took, the later comes the next."""
        self._next_scan = max(self._next_scan, now + max(SCAN_LEAST_SECONDS, SCAN_SHARE * (now - started)))

    def scan_in(self, now: float) -> float:
        """Return the seconds until a claim from the start is due."""
        return 0.0 if self._is_scan_asked else max(self._next_scan - now, 0.0)

    def scan_soon(self) -> None:
        """Make the next claim one from the start, whatever is under way: after a reconnect, or when rows came back below the cursors."""
        self._is_scan_asked = True

    def boundaries(self, now: float, *, from_start: bool, group: GroupName = SHARED) -> list[tuple[Lane, int]]:
        """Return the lanes of a group, highest priority first, each with the place behind which to look.

        Of one priority those come first that a full claim has not reached for longest, so that queues share it evenly.
        """
        known = self._cursors.items()
        if self._own:
            known = {lane: cursor for lane, cursor in known if self._group_of(lane) == group}.items()
        ordered = sorted(known, key=lambda item: (-item[0].priority, item[1].turn))
        self._order = [lane for lane, _ in ordered]
        return [(lane, 0 if from_start else cursor.boundary(now)) for lane, cursor in ordered]

    def cut(self, looks: Iterable[LaneLook], group: GroupName = SHARED) -> None:
        """Note looks that ended among rows that are not for us, such as those of a paused task: what is behind them is walked to."""
        for lane, place in looks:
            walks = self._walks.setdefault(group, {})
            walks[lane] = max(place, walks.get(lane, 0))

    def walks(self, group: GroupName = SHARED, *, is_full: bool = False) -> list[tuple[Lane, int]]:
        """Return the lanes of a group that a walk is under way in, highest priority first, each with the place behind which to go on.

        ``is_full``: the last claim was; then only those of higher priorities than it reached are returned.
        """
        walks = self._walks.get(group, {}).items()
        if is_full:
            walks = {
                lane: place for lane, place in walks if lane.priority > self._filled_to.get(group, lane.priority)
            }.items()
        return sorted(walks, key=lambda walk: -walk[0].priority)

    def walked(
        self, lanes: Iterable[Lane], cut: Iterable[LaneLook], seconds: float, now: float, group: GroupName = SHARED
    ) -> None:
        """Note a piece of walks of a group, which took so long, and which of them go on; a scan that led to them is as long as they."""
        walks = self._walks.pop(group, {})
        for lane in lanes:
            walks.pop(lane, None)
        if walks:
            self._walks[group] = walks
        self.cut(cut, group)
        self._walk_seconds += seconds
        if not self._walks:
            if self._next_scan > 0.0:  # else one is under way, and counts this itself
                self._next_scan = max(self._next_scan, now + SCAN_SHARE * self._walk_seconds)
            self._walk_seconds = 0.0

    def filled(self, last: Lane, starts: int, now: float, *, yielded: Container[Lane] | None = None) -> None:
        """Note that the last claim was full, with so many jobs: it reached the lane of the last one, and none behind it.

        ``yielded``: of a claim from the start, the lanes its jobs came from. A full claim does not say how far it looked: so higher
        priorities that gave nothing are walked through.
        """
        self._turn += 1
        reached = self._order.index(last) + 1 if last in self._order else 0
        for lane in self._order[:reached]:
            if (cursor := self._cursors.get(lane)) is not None:
                cursor.turn = self._turn
        if reached:
            group = self._group_of(last)
            self._filled_to[group] = last.priority
            if yielded is not None:
                above = (
                    lane for lane in self._order[:reached] if lane.priority > last.priority and lane not in yielded
                )
                self.cut((LaneLook(lane, 0) for lane in above), group)
            ageing = self._ageing[group]
            ageing.reached(self._order[:reached])
            ageing.passed_by(self._order[reached:], starts, now)

    def emptied(self, group: GroupName = SHARED) -> None:
        """Note that the last claim was not full: it reached all lanes of its group."""
        ageing = self._ageing.get(group)
        if ageing is not None and not ageing.is_idle:
            ageing.reached(self._order)

    def starved(self, now: float, group: GroupName = SHARED) -> tuple[list[tuple[Lane, int]], int]:
        """Return the lanes whose turn it is because higher priorities starve them, and how many starts are theirs; see ``Ageing``."""
        ageing = self._ageing.get(group)
        starved, starts = ([], 0) if ageing is None else ageing.due(now)
        known = [(one, self._cursors[one.lane]) for one in starved if one.lane in self._cursors]
        return [(one.lane, 0 if one.is_new else cursor.boundary(now)) for one, cursor in known], starts

    def relieved(self, lanes: Iterable[Lane], empty: Iterable[Lane], now: float, group: GroupName = SHARED) -> None:
        """Note starved lanes that had their turn, and those of them in which nothing is."""
        ageing = self._ageing.get(group)
        if ageing is not None:
            ageing.reached(empty)
            ageing.served(lanes, now)

    def looked(self, looks: Iterable[LaneLook], now: float, *, is_filled: bool = True) -> None:
        """Note how far a claim looked; ``is_filled``: there may be more between that and what was seen before."""
        for lane, place in looks:
            if (cursor := self._cursors.get(lane)) is not None:
                cursor.look(place, now, is_filled=is_filled)
