"""``Task``: a declared function as its callers see it, with its parameters, payload, result and state in its type.

``Task[P, M, R, S]``: P, what ``defer`` takes field by field; M, the payload model, an instance of which ``defer`` takes too (Never
where the function's own parameters are the payload: P says all there); R, the result; S, the ``state`` of the handler's context.
"""

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Concatenate, Generic, Never, ParamSpec, Protocol, TypeVar, cast, overload

from typing_extensions import TypeVar as TypeVarWithDefault
from typing_extensions import Unpack

from pqrun.declaration import CallOptions, Declared, Placement, ResultValue
from pqrun.deferral import DeferHooks
from pqrun.errors import DeclarationError, PayloadDecodeError, PayloadError
from pqrun.handle import Call, JobHandle
from pqrun.job.options import check_job_id, is_beyond_job_ids
from pqrun.job.record import Enqueued, Job, JsonObject
from pqrun.portal import Portal
from pqrun.run.context import JobContext
from pqrun.run.handler import Handler
from pqrun.run.threads import run_in_thread
from pqrun.store import PgJobStore
from pqrun.store.ports import AnyConnection

__all__ = ["DeclarePayload", "DeclareTask", "Task"]

P = ParamSpec("P")
M = TypeVar("M")
R = TypeVar("R", bound=ResultValue)
S = TypeVarWithDefault("S", default=Any)


class Task(Generic[P, M, R, S]):
    """A function that can be deferred; made by ``@jobs.task``, never by hand.

    ``defer`` writes a job and returns its handle (``defer_sync`` for synchronous code), ``call`` makes a value for
    ``jobs.defer_many``, ``options`` returns the same task with other options, and calling the task runs the function itself, as
    unit tests do.
    """

    def __init__(
        self,
        declared: Declared,
        portal: Portal,
        hooks: DeferHooks,
        placement: Placement | None = None,
        handler: Handler | None = None,
    ) -> None:
        # Name, docstring and signature of the function, for help(), debuggers and tools that read ``__wrapped__``.
        functools.update_wrapper(cast(Callable[..., object], self), declared.function)
        self._declared = declared
        self._portal = portal
        self._hooks = hooks
        self._placement = placement or declared.placement
        self._handler = handler or handler_of(declared)
        self._decode = cast("Callable[[str | None], R]", declared.result.load)
        self._load = declared.signature.codec.load

    @property
    def name(self) -> str:
        """The job_type of its jobs."""
        return self._declared.name

    @property
    def where(self) -> str:
        """The function with its file and line, for messages."""
        return self._declared.where

    @property
    def declared(self) -> Declared:
        """What was declared, checked and compiled; for tools that look at payloads."""
        return self._declared

    @property
    def store(self) -> PgJobStore:
        """The store of its app, open or not; raises ConfigurationError where the app has no DSN to make one of."""
        return self._portal.find_store()

    @property
    def handler(self) -> Handler:
        """What a worker needs to run its jobs; one object for all of them."""
        return self._handler

    @overload
    async def defer(self, payload: M, /) -> JobHandle[R]: ...
    @overload
    async def defer(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    async def defer(self, /, *args: object, **kwargs: object) -> JobHandle[R]:
        """Validate the payload, write one job and return its handle.

        ``handle.created`` is False when the dedupe key found an active job, whose id is returned then. Raises DeferError
        (PayloadError, OptionError, DedupeKeyError, ArgumentsError, also a TypeError) before anything is written, NotOpenError
        when the app is not open, what a ``before_defer`` hook raises, and StoreError when the database refuses.
        """
        call = self._call(args, kwargs)
        store = self._portal.opened_store()
        call = self._before(call)
        # The store refuses a synchronous one, and says what takes it.
        connection = cast("AnyConnection | None", call.connection)
        (enqueued,) = await store.enqueue_jobs([call.job], connection=connection)
        return self._handle(call, enqueued)

    @overload
    def defer_sync(self, payload: M, /) -> JobHandle[R]: ...
    @overload
    def defer_sync(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    def defer_sync(self, /, *args: object, **kwargs: object) -> JobHandle[R]:
        """Do what ``defer`` does, from synchronous code, in any thread; the app need not be open.

        Where it is open in a loop that runs in another thread, the job goes through that; else a thread of the app's own has
        a connection, until ``jobs.close_sync()`` or the end of the process. With ``.options(connection=...)``, a synchronous one
        (SQLAlchemy, psycopg, Django), the job is written on that, within its open transaction. Raises what ``defer`` raises;
        WrongLoopError where an event loop runs in this thread, which it would block; and NotOpenError for an app made with
        ``pool=`` that is open nowhere.
        """
        call = self._before(self._call(args, kwargs))
        (enqueued,) = self._portal.enqueue_jobs([call.job], call.connection, instead=f"await {self.name}.defer(...)")
        return self._handle(call, enqueued)

    @overload
    def call(self, payload: M, /) -> Call[R]: ...
    @overload
    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
    def call(self, /, *args: object, **kwargs: object) -> Call[R]:
        """Validate the payload and return the job as a value, for ``jobs.defer_many``; raises what ``defer`` raises first."""
        return self._call(args, kwargs)

    @overload
    async def __call__(self, ctx: JobContext[S], payload: M, /) -> R: ...
    @overload
    async def __call__(self, ctx: JobContext[S], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def __call__(self, ctx: JobContext[S], /, *args: object, **kwargs: object) -> R:
        """Run the function itself and return its result; a plain function runs in a thread. Nothing is stored or encoded."""
        declared = self._declared
        if declared.model is not None:  # the parameter that takes it may be a keyword of the function's own choice
            args, kwargs = declared.signature.arguments(declared.build(args, kwargs))
        if declared.is_async:
            return await cast(Callable[..., Awaitable[R]], declared.function)(ctx, *args, **kwargs)
        return cast(R, await run_in_thread(declared.function, ctx, *args, **kwargs))

    def options(self, **options: Unpack[CallOptions]) -> "Task[P, M, R, S]":
        """Return this task with other options for what is deferred through it; calls add up, the last one wins.

        Takes ``queue``, ``priority``, ``max_attempts``, ``timeout`` and ``backoff`` as ``@jobs.task`` does, and ``run_after``,
        ``dedupe_key`` (the finished key; None: no key) and ``connection`` (write in its open transaction). Raises OptionError,
        naming the option.
        """
        placement = self._placement.overlaid(**options)
        return Task(self._declared, self._portal, self._hooks, placement, self._handler)

    def payload_schema(self) -> JsonObject:
        """Return the JSON Schema (2020-12) of a stored payload: an object with one property per field, under its stored name.

        Limits, formats and defaults are in it, where the model has them and JSON can say them. Made anew at each call. Raises
        DeclarationError where the model's own code does not give its schema.
        """
        return self._schema("payload", self._declared.signature.codec.schema)

    def result_schema(self) -> JsonObject:
        """Return the JSON Schema (2020-12) of a stored result, which may be ``null`` where the handler may return None.

        Made anew at each call. Raises DeclarationError where the model's own code does not give its schema.
        """
        return self._schema("result", self._declared.result.schema)

    def _schema(self, what: str, make: Callable[[], JsonObject]) -> JsonObject:
        try:
            return make()
        except Exception as error:  # the border to user code
            raise DeclarationError(
                f"{self.name}: its {what} gives no JSON Schema ({type(error).__name__}) [{self.where}]"
            ) from error

    def handle(self, job_id: int) -> JobHandle[R]:
        """Return the handle of a job of this task from its id; the database is asked when the handle is used."""
        return JobHandle(check_job_id(job_id), False, self._decode, self._portal)

    async def find(self, job_id: int) -> Job | None:
        """Return a job of this task as it is now, or None: no such job, removed by retention, or a job of another task.

        For ids that come from outside, as in a URL; an int that no job can have finds nothing, either.
        """
        if is_beyond_job_ids(job_id):
            return None
        return self._own(await self._portal.opened_store().get(job_id))

    def find_sync(self, job_id: int) -> Job | None:
        """Do what ``find`` does, from synchronous code; see ``defer_sync``."""
        if is_beyond_job_ids(job_id):
            return None
        return self._own(self._portal.run(lambda store: store.get(job_id), instead=f"await {self.name}.find(...)"))

    def _own(self, job: Job | None) -> Job | None:
        return job if job is not None and job.job_type == self.name else None

    def call_stored(self, payload_json: str) -> Call[R]:
        """Return a call from a payload as it is stored, JSON text of an object; raises PayloadError where the model refuses it."""
        codec = self._declared.signature.codec
        try:
            payload = codec.load(payload_json)
        except PayloadDecodeError as error:
            refusal = PayloadError(str(error), error.errors)
        else:
            return Call(
                self._declared.new_job(payload, self._placement), self._decode, self._load, self._placement.connection
            )
        raise refusal

    def _call(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Call[R]:
        payload = self._declared.build(args, kwargs)
        placement = self._placement
        return Call(self._declared.new_job(payload, placement), self._decode, self._load, placement.connection)

    def _before(self, call: Call[R]) -> Call[R]:
        if not self._hooks.before:
            return call
        return self._hooks.prepared(call, in_transaction=call.connection is not None)

    def _handle(self, call: Call[R], enqueued: Enqueued) -> JobHandle[R]:
        handle = JobHandle(enqueued.id, enqueued.created, call.decode, self._portal)
        if self._hooks.after:
            self._hooks.written(call, handle, in_transaction=call.connection is not None)
        return handle

    def __repr__(self) -> str:
        return f"<Task {self.name!r}: {self.where}>"


class DeclarePayload(Protocol[P, M, S]):
    """What ``@jobs.task(payload=Model, ...)`` is: it takes an async or a plain function of (ctx, payload)."""

    @overload
    def __call__(self, function: Callable[[JobContext[S], M], Awaitable[R]], /) -> Task[P, M, R, S]: ...
    @overload
    def __call__(self, function: Callable[[JobContext[S], M], R], /) -> Task[P, M, R, S]: ...


class DeclareTask(Protocol[S]):
    """What ``@jobs.task(...)`` without ``payload=`` is: the parameters after ctx are the payload."""

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext[S], P], Awaitable[R]], /) -> Task[P, Never, R, S]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[JobContext[S], P], R], /) -> Task[P, Never, R, S]: ...


def handler_of(declared: Declared) -> Handler:
    """Tie decoding, the function and encoding together."""
    signature, function = declared.signature, declared.function

    def run(ctx: JobContext[Any], payload: object) -> object:
        args, kwargs = signature.arguments(payload)
        return function(ctx, *args, **kwargs)

    if signature.takes_model_alone:  # the function has the very shape that a worker calls
        run = function

    return Handler(
        job_type=declared.name,
        decode=signature.codec.load,
        version=declared.version,
        decode_older=declared.older.read,
        upgrades_from=declared.older.oldest,
        shape=signature.codec.shape,
        call=run,
        encode=declared.result.dump,
        is_async=declared.is_async,
        queue=declared.placement.options.queue,
        backoff=declared.backoff,
        rules=declared.rules,
    )
