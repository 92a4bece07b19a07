"""What code registers with an app: handlers, middleware, hooks, resources, schedules."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Generic, TypeVar, overload

from typing_extensions import TypeVar as TypeVarWithDefault

from pqrun.declaration import located
from pqrun.deferral import AfterHook, BeforeHook, DeferHooks, check_hook
from pqrun.errors import ConfigurationError, DeclarationError
from pqrun.handle import Call
from pqrun.job.definition import ScheduleDefinition
from pqrun.job.schedule import CatchUp, Overlap
from pqrun.run.context import JobContext
from pqrun.run.handler import Handler
from pqrun.run.middleware import CallNext, Middleware, check_middleware
from pqrun.schedules import define

__all__ = ["Registrations"]

V = TypeVar("V")
BeforeT = TypeVar("BeforeT", bound=BeforeHook)
AfterT = TypeVar("AfterT", bound=AfterHook)
S = TypeVarWithDefault("S", default=Any)


class Registrations(Generic[S]):
    """The part of ``App`` that needs no database; a worker takes from it what it runs."""

    def __init__(self, resources: Callable[[], AbstractAsyncContextManager[S]] | None) -> None:
        _check_resources(resources)
        self._resources = resources
        self._handlers: dict[str, Handler] = {}
        self._middleware: list[Middleware[S]] = []  # the first is outermost
        self._hooks = DeferHooks()
        self._schedules: dict[str, ScheduleDefinition] = {}

    @property
    def resources(self) -> Callable[[], AbstractAsyncContextManager[S]] | None:
        """What each worker opens once; None without ``resources=``."""
        return self._resources

    @property
    def around(self) -> Sequence[Middleware[Any]]:
        """The registered middleware, the outermost first; what a worker takes when it starts."""
        return tuple(self._middleware)

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """For each declared job_type, what a worker needs to run it; a view, which shows tasks declared later too."""
        return MappingProxyType(self._handlers)

    @property
    def declared_schedules(self) -> Mapping[str, ScheduleDefinition]:
        """What code declares, by name; a view. What operators made of it stands in the database: ``jobs.schedules``."""
        return MappingProxyType(self._schedules)

    def middleware(
        self, function: Callable[[JobContext[S], CallNext], Awaitable[V]], /
    ) -> Callable[[JobContext[S], CallNext], Awaitable[V]]:
        """Run ``function`` around each execution of this app's tasks, async and plain; ``@jobs.middleware`` above its ``async def``.

        It gets the context and ``call_next``, which runs the rest, and returns the result: ``return await call_next(ctx)``. What it
        raises is an ordinary failure of the attempt, what it returns is checked like any result, and the timeout of the job counts
        its time too. The first registered is outermost. A worker takes what is registered when it starts; pqrun's own jobs and jobs
        whose payload does not decode do not reach it. Raises DeclarationError for what cannot be one.
        ::

            @jobs.middleware
            async def timed(ctx: JobContext, call_next: CallNext) -> object:
                started = time.perf_counter()
                try:
                    return await call_next(ctx)
                finally:
                    ctx.logger.info("took %.3f s", time.perf_counter() - started)
        """
        with located(function):
            check_middleware(function)
        self._middleware.append(function)
        return function

    def before_defer(self, function: BeforeT, /) -> BeforeT:
        """Call ``function`` with the ``Deferral`` of each job right before it is written; ``@jobs.before_defer`` above a plain def.

        It is called where ``defer`` is, once per job, also for ``defer_many`` and ``connection=``. What it raises reaches the caller
        as it is, and nothing is written. It returns None, or ``deferral.replace(queue=...)`` to write the job with other options.
        Hooks are called in the order in which they were registered, each with what the last one returned. Raises DeclarationError.
        """
        with located(function):
            check_hook(function, "before_defer", 1)
        self._hooks.before = (*self._hooks.before, function)
        return function

    def after_defer(self, function: AfterT, /) -> AfterT:
        """Call ``function`` with the ``Deferral`` and the handle of each job once its row is written; ``@jobs.after_defer``.

        With ``connection=`` that is before the caller's commit, which may still fail. ``handle.created`` is False where an active job
        with the same dedupe key was found. What it raises is logged, by type and place, and is not raised. Raises DeclarationError.
        """
        with located(function):
            check_hook(function, "after_defer", 2)
        self._hooks.after = (*self._hooks.after, function)
        return function

    @contextmanager
    def override_resources(self, resources: Callable[[], AbstractAsyncContextManager[S]]) -> Iterator[None]:
        """Give workers that start inside the ``with`` block other resources, for tests; blocks may be nested.

        A worker keeps what it entered at its start. Raises ConfigurationError for what is no async context manager function.
        ::

            with jobs.override_resources(lambda: nullcontext(FakeResources())):
                async with jobs, jobs.worker().lifespan(): ...
        """
        _check_resources(resources)
        before, self._resources = self._resources, resources
        try:
            yield
        finally:
            self._resources = before

    @overload
    def schedule(
        self,
        name: str,
        call: Call[object],
        *,
        cron: str,
        tz: str = "UTC",
        catch_up: CatchUp = "one",
        overlap: Overlap = "allow",
        jitter: timedelta = timedelta(0),
        paused: bool = False,
    ) -> ScheduleDefinition: ...
    @overload
    def schedule(
        self,
        name: str,
        call: Call[object],
        *,
        every: timedelta,
        catch_up: CatchUp = "one",
        overlap: Overlap = "allow",
        jitter: timedelta = timedelta(0),
        paused: bool = False,
    ) -> ScheduleDefinition: ...
    def schedule(self, name: str, call: Call[object], *, paused: bool = False, **options: Any) -> ScheduleDefinition:
        """Declare a schedule: ``jobs.schedule("nightly", report.call(day="yesterday"), cron="30 2 * * *", tz="Europe/Berlin")``.

        ``name``: unique in the schema. ``call``: what each firing inserts, with its options. ``cron``: five fields, or six with seconds
        first, on the wall clock of ``tz``; or ``every``: real time. ``catch_up``: what becomes of firings that no worker was there for,
        ``"skip"``, ``"one"`` for all of them, or ``"all"``. ``overlap``: ``"skip"`` makes no job while the last one is active. ``jitter``:
        puts each job off by up to so much. ``paused``: it begins paused. Workers of this app store it when they start, if it differs from
        the last code seen. Raises OptionError, ArgumentsError and DeclarationError.
        """
        definition = define(name, call, options, is_paused=paused)
        if definition.job.job_type not in self._handlers:
            raise DeclarationError(f"schedule {name!r}: {definition.job.job_type!r} is no task of this app")
        self._declare_schedule(definition)
        return definition

    def _declare_schedule(self, definition: ScheduleDefinition) -> None:
        if definition.name in self._schedules:
            raise DeclarationError(
                f"the name {definition.name!r} is taken by another schedule of this app; give another"
            )
        self._schedules[definition.name] = definition


def _check_resources(resources: object) -> None:
    # What an @asynccontextmanager function returns can be called too, as a decorator.
    if isinstance(resources, AbstractAsyncContextManager) or not (resources is None or callable(resources)):
        raise ConfigurationError(
            "resources= takes an async context manager function (@asynccontextmanager), not the result of calling it; "
            f"got {type(resources).__name__}"
        )
