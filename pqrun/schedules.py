"""Schedules from code: how a definition is made of options, and ``jobs.schedules``, where operators see and change what is stored."""

from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast
from zoneinfo import ZoneInfo

import msgspec
from typing_extensions import Unpack

from pqrun.declaration import Declared, ScheduleOptions
from pqrun.errors import (
    ArgumentsError,
    DeclarationError,
    OptionError,
    PqrunError,
    ScheduleError,
    ScheduleNotFound,
    ScheduleRefused,
)
from pqrun.handle import Call
from pqrun.job.definition import Schedule, ScheduleDefinition
from pqrun.job.options import check_name
from pqrun.job.schedule import (
    check_catch_up,
    check_jitter,
    check_overlap,
    check_rule,
    firings,
    preview,
    words,
)
from pqrun.portal import Portal
from pqrun.store import schedules as rows
from pqrun.store.enqueueing import Runs

__all__ = ["Preview", "Schedules", "define", "define_for_task"]

T = TypeVar("T")

PREVIEW_MAX = 10_000

EDIT_TRIES = 5
"""How often a change is tried that meets another one."""


class Preview(msgspec.Struct, frozen=True):
    """What a schedule is about to do."""

    words: str
    """The rule in words, such as ``"at 02:30 every day, Europe/Berlin"``."""
    firings: tuple[datetime, ...]
    """The next planned times, without jitter, in the schedule's zone (UTC for ``every``)."""


def define(
    name: str, call: Call[object], options: Mapping[str, object], *, is_paused: bool = False
) -> ScheduleDefinition:
    """Check a schedule as users write it; raises OptionError, naming the option, and ArgumentsError for a call that cannot be repeated."""
    check_name(name)
    if not isinstance(call, Call):
        raise ArgumentsError(f"schedule {name!r}: expected task.call(...), got {type(call).__name__}")
    if call.connection is not None:
        raise ArgumentsError(
            f"schedule {name!r}: the call carries a connection, which does not outlive its transaction"
        )
    if call.job.run_after is not None or call.job.delay_seconds is not None:
        raise ArgumentsError(f"schedule {name!r}: the call carries run_after; when it runs is what cron= or every= say")
    if call.job.headers is not None:
        raise ArgumentsError(f"schedule {name!r}: the call carries headers, which a schedule does not keep")
    _refuse_unknown(options)
    return ScheduleDefinition(
        name=name,
        job=call.job,
        rule=check_rule(cron=options.get("cron"), every=options.get("every"), tz=options.get("tz")),
        catch_up=check_catch_up(options.get("catch_up", "one")),
        overlap=check_overlap(options.get("overlap", "allow")),
        jitter=check_jitter(options.get("jitter", timedelta(0))),
        is_paused=is_paused,
    )


def define_for_task(declared: Declared, options: Mapping[str, object]) -> ScheduleDefinition | None:
    """Make the schedule of ``@jobs.task(..., cron=...)``, None without such options; raises OptionError and DeclarationError.

    The stored payload is the empty object: a default is what the code says when the job runs, not when it was declared.
    """
    given = {name: options[name] for name in ScheduleOptions.__annotations__ if name in options}
    if not given:
        return None
    if "cron" not in given and "every" not in given:
        raise OptionError(f"{next(iter(given))}: goes with cron= or every=")
    codec = declared.signature.codec
    try:
        job = declared.new_job(codec.load("{}"), declared.placement)
    except PqrunError as error:
        reason = str(error)
    else:
        bare = msgspec.structs.replace(job, payload="{}")
        return define(declared.name, Call(bare, declared.result.load, codec.load), given)
    option = "cron" if "cron" in given else "every"
    raise DeclarationError(
        f"{option}=: a task with a required payload cannot be scheduled by its declaration ({reason}); "
        f"use jobs.schedule('a name', {declared.name}.call(...), {option}=...) [{declared.where}]"
    )


def _refuse_unknown(options: Mapping[str, object]) -> None:
    for name in options:
        if name not in ScheduleOptions.__annotations__:
            raise ArgumentsError(
                f"a schedule has no option {name!r}; it takes {', '.join(ScheduleOptions.__annotations__)}"
            )


class Schedules:
    """The stored schedules: ``jobs.schedules`` of an open app, ``Schedules(store)``, or of a session, within its transaction.

    Every call is one look or one change in the database; workers hear of a change at once. All of them raise StoreError and its kinds,
    and those that name a schedule ScheduleNotFound. The calls whose names end in ``_sync`` are those of ``jobs.schedules`` alone.
    """

    def __init__(self, store: Runs | Callable[[], Runs], portal: Portal | None = None) -> None:
        self._find_store = store
        self._portal = portal

    @property
    def _store(self) -> Runs:
        return self._find_store() if callable(self._find_store) else self._find_store

    async def list(self) -> "list[Schedule]":
        """Return all schedules, by name, paused and orphaned ones included."""
        return (await rows.find(self._store)).schedules

    async def get(self, name: str) -> Schedule:
        """Return a schedule as it is now."""
        return (await self._known(name))[0]

    async def add(
        self, name: str, call: Call[object], *, paused: bool = False, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Add a schedule that no code declares; ``call`` and the options are those of ``jobs.schedule``.

        Raises ScheduleRefused for a name that is taken, OptionError and ArgumentsError.
        """
        definition = define(name, call, options, is_paused=paused)
        clock = (await rows.find(self._store, [])).clock
        if not await rows.add(self._store, definition, next(firings(definition.rule, clock))):
            raise ScheduleRefused(
                f"there is a schedule {name!r} already; edit or remove it, or take another name", name
            )
        return await self.get(name)

    async def edit(
        self, name: str, *, call: Call[object] | None = None, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Change what is given and leave the rest. A new rule is planned from now on; ``tz`` alone moves the expression to another zone.

        What an operator edits stays until the *code* changes. Raises OptionError and ArgumentsError.
        """
        _refuse_unknown(options)
        for _ in range(EDIT_TRIES):
            old, clock = await self._known(name)
            new = _edited(old, call, options)
            following = None if new.rule == old.rule else next(firings(new.rule, clock))
            if await rows.edit(self._store, new, following, old.revision):
                return await self.get(name)
        raise ScheduleError(f"the schedule {name!r} is being changed all the time; try again", name)

    async def pause(self, name: str) -> None:
        """Stop it from firing, for all workers; jobs that it has made go on. A pause survives deploys."""
        if not await rows.pause(self._store, name):
            raise _not_found(name)

    async def resume(self, name: str) -> None:
        """Let a paused schedule fire again from its next planned time on; what came while it was paused is not made up for."""
        for _ in range(EDIT_TRIES):
            old, clock = await self._known(name)
            if old.paused_at is None or await rows.resume(
                self._store, name, next(firings(old.rule, clock)), old.revision
            ):
                return
        raise ScheduleError(f"the schedule {name!r} is being changed all the time; try again", name)

    async def run(self, name: str) -> int:
        """Make a job of it now, whatever its plan and state, and return the job's id; the plan stays.

        ``ctx.scheduled_for`` is the time of this call. Raises ScheduleRefused, with ``job_id``, when ``overlap="skip"`` and the last job is
        active, or an active job has its dedupe key.
        """
        made = await rows.run_now(self._store, name)
        if made is None:
            raise _not_found(name)
        if made.job_id is not None:
            return made.job_id
        if made.busy_id is not None:
            reason = f"its last job, {made.busy_id}, is still active, and overlap is 'skip'"
        else:
            reason = f"the active job {made.holder_id or ''} has its dedupe key"
        raise ScheduleRefused(f"schedule {name!r} was not run: {reason}", name, made.busy_id or made.holder_id)

    async def skip(self, name: str, *, planned: datetime | None = None) -> datetime:
        """Let its next firing be left out, and return the planned time that will not be; the one behind it comes as ever.

        ``planned``: skip this firing and no other, where another may have taken place since somebody looked. A firing that is late is the
        next one, with all that it would make up for; under ``catch_up="all"`` only the earliest of them is left out. Raises
        ScheduleRefused for a schedule that is paused or orphaned, and for a ``planned`` that is not its next time.
        """
        for _ in range(EDIT_TRIES):
            old, clock = await self._known(name)
            if old.state != "active":
                raise ScheduleRefused(
                    f"schedule {name!r} is {old.state}: it does not fire, so nothing is skipped", name
                )
            skipped = next(firings(old.rule, clock)) if old.next_at is None else old.next_at
            if planned is not None and planned != skipped:
                raise ScheduleRefused(
                    f"schedule {name!r} was not changed: its next time is {skipped.isoformat()}, not {planned.isoformat()}",
                    name,
                )
            is_made_up_for = skipped <= clock and old.catch_up != "all"
            if await rows.skip(self._store, old, next(firings(old.rule, clock if is_made_up_for else skipped))):
                return skipped
        raise ScheduleError(f"the schedule {name!r} is being changed all the time; try again", name)

    async def remove(self, name: str) -> None:
        """Remove a schedule. Raises ScheduleRefused for one that code declares: pause it, or drop it from the code first."""
        found = await rows.remove(self._store, name)
        if found is None:
            raise _not_found(name)
        is_removed, app = found
        if not is_removed:
            raise ScheduleRefused(
                f"schedule {name!r} is declared by the code of app {app!r}, whose next worker would bring it back: "
                "pause it, or drop it there",
                name,
            )

    async def preview(self, name: str, count: int = 5) -> Preview:
        """Return the rule in words and the next ``count`` planned times, as if nothing stopped it."""
        _check_count(count)
        schedule, clock = await self._known(name)
        following = preview(schedule.rule, clock, count)
        planned = schedule.next_at
        if planned is not None and planned > clock and planned not in following[:1]:  # set by hand
            following = [planned, *preview(schedule.rule, planned, count)][:count]
        zone = ZoneInfo(schedule.tz or "UTC")
        return Preview(words(schedule.rule), tuple(instant.astimezone(zone) for instant in following))

    # The same for synchronous code.

    def pause_sync(self, name: str) -> None:
        """Do what ``pause`` does, from synchronous code; see ``Task.defer_sync``."""
        self._run_sync("pause", lambda schedules: schedules.pause(name))

    def resume_sync(self, name: str) -> None:
        """Do what ``resume`` does, from synchronous code; see ``Task.defer_sync``."""
        self._run_sync("resume", lambda schedules: schedules.resume(name))

    def run_sync(self, name: str) -> int:
        """Do what ``run`` does, from synchronous code; see ``Task.defer_sync``."""
        return self._run_sync("run", lambda schedules: schedules.run(name))

    def skip_sync(self, name: str, *, planned: datetime | None = None) -> datetime:
        """Do what ``skip`` does, from synchronous code; see ``Task.defer_sync``."""
        return self._run_sync("skip", lambda schedules: schedules.skip(name, planned=planned))

    def remove_sync(self, name: str) -> None:
        """Do what ``remove`` does, from synchronous code; see ``Task.defer_sync``."""
        self._run_sync("remove", lambda schedules: schedules.remove(name))

    def _run_sync(self, what: str, work: "Callable[[Schedules], Coroutine[Any, Any, T]]") -> T:
        if self._portal is None:
            raise ArgumentsError(f"{what}_sync: expected the schedules of an App, jobs.schedules; got those of a store")
        return self._portal.run(lambda store: work(Schedules(store)), instead=f"await jobs.schedules.{what}(...)")

    async def _known(self, name: str) -> tuple[Schedule, datetime]:
        known = await rows.find(self._store, [name])
        if not known.schedules:
            raise _not_found(name)
        return known.schedules[0], known.clock


def _check_count(count: object) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= PREVIEW_MAX:
        raise OptionError(f"count: expected a whole number from 0 to {PREVIEW_MAX}; got {repr(count)[:40]}")


def _not_found(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"there is no schedule {name!r}", name)


def _edited(old: Schedule, call: Call[object] | None, options: ScheduleOptions) -> ScheduleDefinition:
    """Lay what is given over what is there."""
    given = cast("dict[str, Any]", dict(options))
    if "cron" not in given and "every" not in given:
        if "tz" in given and old.cron is None:
            raise OptionError("tz: goes with cron= only; every= counts real time, which has no zone")
        given = {"cron": old.cron, "every": old.every, "tz": old.tz, **given}
    elif "cron" in given:
        given = {"tz": old.tz, **given}
    kept = {"catch_up": old.catch_up, "overlap": old.overlap, "jitter": old.jitter}
    repeated: Call[object] = Call(old.definition.job, _nothing, _nothing) if call is None else call
    return define(old.name, repeated, {**kept, **given})


def _nothing(_text: str | None) -> None:
    return None
