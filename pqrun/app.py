"""``App``: where tasks are declared, and what opens the store that they write to."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from types import MappingProxyType, TracebackType
from typing import Any, Concatenate, Never, ParamSpec, Self, TypeVar, overload

from typing_extensions import TypeVar as TypeVarWithDefault
from typing_extensions import Unpack

from pqrun.binding import SCHEMA_DEFAULT, Binding
from pqrun.check import SAMPLE_DEFAULT, CheckProgress, CheckReport, check_jobs
from pqrun.declaration import DeclaredOptions, ResultValue, check_declared, declare
from pqrun.errors import ArgumentsError, DeclarationError
from pqrun.handle import Call, JobHandle
from pqrun.job.filter import JobFilter
from pqrun.job.options import check_name
from pqrun.job.record import Enqueued
from pqrun.job.storable import dump_object
from pqrun.portal import Portal
from pqrun.queues import QueueCalls
from pqrun.registration import Registrations
from pqrun.run.context import JobContext
from pqrun.schedules import Schedules, define_for_task
from pqrun.selection import JobSelection
from pqrun.store import PgJobStore
from pqrun.store.ports import AnyConnection, AnySyncConnection, Pool
from pqrun.task import DeclarePayload, DeclareTask, Task
from pqrun.worker import Worker, WorkerOptions
from pqrun.workers import Workers

__all__ = ["App"]

P = ParamSpec("P")
M = TypeVar("M")
R = TypeVar("R", bound=ResultValue)
V = TypeVar("V")
S = TypeVarWithDefault("S", default=Any)

NAME_DEFAULT = "app"


class App(Registrations[S], QueueCalls):
    """The tasks of an application and the database they live in.

    ``dsn``: a PostgreSQL URL, or ``embedded:PATH`` for a database of pqrun's own; or ``pool``: an asyncpg pool that stays yours to
    close; or ``store``: a ``PgJobStore``. With none of them PQRUN_DSN counts, then DATABASE_URL, read when the app is opened.
    ``schema``: where the tables are, ``"pqrun"`` by default. ``resources``: an async context manager function that each worker
    enters once; handlers get what it yields as ``ctx.state``. ``name``: tells apps that share a schema apart, by whose code a schedule
    is declared; ``"app"`` by default. Raises ConfigurationError for options that exclude each other.
    ::

        jobs = App(dsn="postgresql://localhost/shop")

        @jobs.task(payload=Welcome, max_attempts=5)
        async def send_email(ctx: JobContext, payload: Welcome) -> Sent: ...

        async with jobs:
            job = await send_email.defer(user_id=123)
    """

    @overload
    def __init__(
        self: "App[None]",
        *,
        dsn: str | None = None,
        pool: Pool | None = None,
        store: PgJobStore | None = None,
        schema: str = SCHEMA_DEFAULT,
        name: str = NAME_DEFAULT,
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        dsn: str | None = None,
        pool: Pool | None = None,
        store: PgJobStore | None = None,
        schema: str = SCHEMA_DEFAULT,
        name: str = NAME_DEFAULT,
        resources: Callable[[], AbstractAsyncContextManager[S]],
    ) -> None: ...
    def __init__(
        self,
        *,
        dsn: str | None = None,
        pool: Pool | None = None,
        store: PgJobStore | None = None,
        schema: str = SCHEMA_DEFAULT,
        name: str = NAME_DEFAULT,
        resources: Callable[[], AbstractAsyncContextManager[S]] | None = None,
    ) -> None:
        super().__init__(resources)
        self._binding = Binding(dsn=dsn, pool=pool, store=store, schema=schema)
        self.name = check_name(name)
        """Whose code a schedule is declared by, among apps that share a schema."""
        self._tasks: dict[str, Task[..., Any, Any, S]] = {}
        # Looked up at each call: see ``bound``.
        self._portal = Portal(
            opened_store=self._opened_store,
            find_store=lambda: self.store,
            make_store=self._another_store,
        )

    @property
    def store(self) -> PgJobStore:
        """The store, made when it is first asked for, opened by ``async with jobs``; raises ConfigurationError without a DSN."""
        return self._binding.store

    @property
    def schema(self) -> str:
        """The schema that holds the tables."""
        return self._binding.schema

    @overload
    def task(self, function: Callable[Concatenate[JobContext[S], P], Awaitable[R]], /) -> Task[P, Never, R, S]: ...
    @overload
    def task(self, function: Callable[Concatenate[JobContext[S], P], R], /) -> Task[P, Never, R, S]: ...
    @overload
    def task(
        self,
        /,
        *,
        payload: Callable[P, M],
        dedupe_key: str | Callable[[M], str] | None = None,
        **options: Unpack[DeclaredOptions],
    ) -> DeclarePayload[P, M, S]: ...
    @overload  # a TypedDict is no constructor for every checker: its instances only
    def task(
        self,
        /,
        *,
        payload: type[M],
        dedupe_key: str | Callable[[M], str] | None = None,
        **options: Unpack[DeclaredOptions],
    ) -> DeclarePayload[[M], M, S]: ...
    @overload  # no function as dedupe_key here: it would make checkers solve P before they see the task
    def task(self, /, *, dedupe_key: str | None = None, **options: Unpack[DeclaredOptions]) -> DeclareTask[S]: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        payload: Any = None,
        dedupe_key: str | Callable[[Any], str] | None = None,
        **options: Unpack[DeclaredOptions],
    ) -> Any:
        """Declare a task: ``@jobs.task(payload=Model, ...)``, ``@jobs.task(...)`` or a bare ``@jobs.task``.

        ``payload``: the model of the payload, as the function's parameter after ``ctx``; without it the parameters after ``ctx``
        are the payload (one key each; a single parameter annotated with a model is stored as that model). ``dedupe_key``: a
        template over payload fields such as ``"welcome:{user_id}"``, or, with ``payload=``, a function of the payload. ``name``:
        the job_type, by default the function's name. ``queue``, ``priority``, ``max_attempts``, ``timeout``, ``backoff``: see
        ``TaskOptions``; all others: ``DeclaredOptions``. ``cron`` (or ``every``), ``tz``, ``catch_up``, ``overlap``, ``jitter``: a
        schedule of the task's name, for tasks without required payload; see ``schedule``. Raises DeclarationError (a TypeError),
        naming the place, and OptionError.
        """
        check_declared(options, payload=payload, dedupe_key=dedupe_key)

        def register(function: Callable[..., Any]) -> Task[..., Any, Any, S]:
            declared = declare(function, payload=payload, dedupe_key=dedupe_key, **options)
            other = self._tasks.get(declared.name)
            if other is not None:
                raise DeclarationError(
                    f"the name {declared.name!r} is taken by {other.where}; give name= [{declared.where}]"
                )
            task: Task[..., Any, Any, S] = Task(declared, self._portal, self._hooks)
            definition = define_for_task(declared, options)
            if definition is not None:
                self._declare_schedule(definition)
            self._tasks[declared.name] = task
            self._handlers[declared.name] = task.handler
            return task

        return register if function is None else register(function)

    @property
    def tasks(self) -> "Mapping[str, Task[..., Any, Any, S]]":
        """The declared tasks by their names; a view, which shows tasks declared later too."""
        return MappingProxyType(self._tasks)

    @property
    def schedules(self) -> Schedules:
        """The stored schedules, to list, add, edit, pause, resume, run, skip and remove; the app must be open, but for ``…_sync``."""
        return Schedules(self._opened_store, self._portal)

    @property
    def workers(self) -> Workers:
        """The workers that live, to list and to change while they run; the app must be open, but for synchronous calls."""
        return Workers(self._opened_store, self._portal)

    def call_by_name(self, job_type: str, payload: Mapping[str, object]) -> Call[object]:
        """Return a call of the task of this name with a payload as it is stored (a JSON object), checked against its model.

        Raises ArgumentsError for a task that the app does not have, and PayloadError.
        """
        task = self._tasks.get(job_type)
        if task is None:
            known = ", ".join(sorted(self._tasks)) or "none"
            raise ArgumentsError(f"the app has no task {job_type!r:.80}; it has {known}")
        return task.call_stored(dump_object(payload, "payload"))

    def prepared(self, call: Call[V]) -> Call[V]:
        """Return what the ``before_defer`` hooks make of a call that is about to be written in a transaction; for tools.

        Raises what a hook raises.
        """
        return self._before([call], self)[0]

    def written(self, call: Call[V], job_id: int) -> JobHandle[V]:
        """Show the ``after_defer`` hooks a job that was written from what ``prepared`` returned, and return its handle; for tools.

        Called after the commit: a hook may look for the job.
        """
        return self._handles([call], [Enqueued(job_id, True)], self)[0]

    async def defer_many(
        self, calls: Iterable[Call[V]], *, connection: AnyConnection | None = None
    ) -> list[JobHandle[V]]:
        """Write many jobs, of any mix of tasks, in one transaction with few round trips; return their handles in order.

        ``calls``: what ``task.call(...)`` gave. ``connection`` (asyncpg's, SQLAlchemy's or psycopg's): write in its open transaction
        instead of one of our own. Calls with equal dedupe keys share one job. Raises ArgumentsError, naming the index, for what is
        no call or carries a connection of its own, and otherwise what ``defer`` raises; then nothing was written.
        """
        checked = _checked_calls(calls, "defer_many")
        store = self._opened_store()
        if not checked:
            return []
        calls = self._before(checked, connection)
        written = await store.enqueue_jobs([call.job for call in calls], connection=connection)
        return self._handles(calls, written, connection)

    def defer_many_sync(
        self, calls: Iterable[Call[V]], *, connection: AnySyncConnection | None = None
    ) -> list[JobHandle[V]]:
        """Do what ``defer_many`` does, from synchronous code, in any thread; see ``Task.defer_sync``.

        ``connection`` (SQLAlchemy's, psycopg's or Django's): write in its open transaction.
        """
        checked = self._before(_checked_calls(calls, "defer_many_sync"), connection)
        new = [call.job for call in checked]
        written = self._portal.enqueue_jobs(new, connection, instead="await jobs.defer_many(...)")
        return self._handles(checked, written, connection)

    def select(self, which: JobFilter | Iterable[int], *, limit: int | None = None) -> JobSelection:
        """Choose jobs by ids or by a ``JobFilter``, at most ``limit``, to count, find, cancel, retry, delete, move or prioritize them."""
        return JobSelection(self._portal, which, limit)

    def close_sync(self) -> None:
        """End the thread and the connections that synchronous calls have made, within some seconds; the next such call makes new ones.

        The end of the process does it, too. What ``async with jobs`` has opened stays open.
        """
        self._portal.close()

    async def check(
        self,
        *,
        tasks: Collection[str] | None = None,
        sample: int = SAMPLE_DEFAULT,
        sample_only: bool = False,
        on_progress: Callable[[CheckProgress], None] = lambda _progress: None,
    ) -> CheckReport:
        """Say whether this code can run all jobs that wait: what ``pqrun check`` does, for tests and scripts.

        Decodes the payload of every job that has not finished, by its task and with its upgrades, and reports those that cannot be
        decoded, job_types without a task, and tasks whose payloads look different from what running workers have noted. It reads only,
        without locks, in bounded memory. ``tasks``: only those of these names; ``sample``: how many of each task and version are
        decoded first; ``sample_only``: no more than those; ``on_progress`` is told several times a second. Raises OptionError,
        NotOpenError, SchemaError and StoreError.
        """
        store = self._opened_store()
        return await check_jobs(
            store, self.handlers, tasks=tasks, sample=sample, sample_only=sample_only, on_progress=on_progress
        )

    def worker(self, **options: Unpack[WorkerOptions]) -> Worker:
        """Return a worker that runs this app's tasks; takes the options of ``Worker``.

        It serves "default" and the queues of the tasks, unless ``queues=`` says else. Import the modules that declare them
        before it starts.
        """
        return Worker.for_tasks(
            store=lambda: self.store,
            handlers=self.handlers,
            resources=lambda: self._resources,
            around=lambda: self.around,
            schedules=lambda: tuple(self._schedules.values()),
            app=self.name,
            **options,
        )

    @contextmanager
    def bound(self, *, dsn: str | None = None, store: PgJobStore | None = None) -> Iterator[None]:
        """Let the app use another database until the block ends, as if it had been made with it; for tests, see ``pqrun.testing``.

        The app is not open then; where it was open before, it is again after the block, untouched. Raises ConfigurationError.
        """
        now = Binding(dsn=dsn, store=store)
        with self._portal.apart():
            before, self._binding = self._binding, now
            try:
                yield
            finally:
                self._binding = before

    def lifespan(self, asgi_app: object = None) -> AbstractAsyncContextManager[None]:  # noqa: ARG002  # the frameworks' protocol
        """Open the app for as long as a web application runs; no jobs run in it.

        For ``FastAPI(lifespan=jobs.lifespan)``, Starlette the same, ``Litestar(lifespan=[jobs.lifespan])``.
        """
        return self._lifespan()

    @asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[None]:
        async with self:
            yield

    async def __aenter__(self) -> Self:
        await self._binding.open()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._binding.close()

    def _before(self, calls: Sequence[Call[V]], connection: object) -> Sequence[Call[V]]:
        if not self._hooks.before:
            return calls
        return [self._hooks.prepared(call, in_transaction=connection is not None) for call in calls]

    def _handles(self, calls: Sequence[Call[V]], written: Sequence[Enqueued], connection: object) -> list[JobHandle[V]]:
        pairs = zip(calls, written, strict=True)
        handles = [JobHandle(one.id, one.created, call.decode, self._portal) for call, one in pairs]
        if self._hooks.after:
            for call, handle in zip(calls, handles, strict=True):
                self._hooks.written(call, handle, in_transaction=connection is not None)
        return handles

    def _opened_store(self) -> PgJobStore:
        return self._binding.opened_store()

    def _another_store(self) -> PgJobStore:
        return self._binding.another_store()

    def __repr__(self) -> str:
        return f"<App with {len(self._tasks)} tasks>"


def _checked_calls(calls: Iterable[Call[V]], method: str) -> list[Call[V]]:
    checked = []
    for index, call in enumerate(calls):
        if not isinstance(call, Call):
            raise ArgumentsError(f"{method}: item {index} must be task.call(...), got {type(call).__name__}")
        if call.connection is not None:
            raise ArgumentsError(
                f"{method}: item {index} carries a connection; all jobs go in one transaction: "
                f"give connection= to {method} instead"
            )
        checked.append(call)
    return checked
