"""Code around every job: one database session per job, the tenant of its payload, and a queue for each tenant."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from pydantic import BaseModel

from pqrun import App, CallNext, Deferral, JobContext, JobFailed, JobHandle

TENANT: ContextVar[str] = ContextVar("TENANT")


class OfTenant(BaseModel):
    tenant: str


class Invoice(OfTenant):
    number: int


class Sessions:
    """Stands for a session maker; what is in a session is done if it commits."""

    def __init__(self) -> None:
        self.done: list[str] = []

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[list[str]]:
        session: list[str] = []
        yield session
        self.done += session  # not reached when the job fails


SESSION: ContextVar[list[str]] = ContextVar("SESSION")


@asynccontextmanager
async def open_sessions() -> AsyncIterator[Sessions]:
    sessions = Sessions()
    yield sessions
    print("done:", ", ".join(sorted(sessions.done)))


jobs = App(resources=open_sessions)


@jobs.middleware
async def of_tenant(ctx: JobContext[Sessions], call_next: CallNext) -> object:
    if isinstance(ctx.payload, OfTenant):
        TENANT.set(ctx.payload.tenant)
    return await call_next(ctx)


@jobs.middleware
async def session_per_job(ctx: JobContext[Sessions], call_next: CallNext) -> object:
    async with ctx.state.begin() as session:
        SESSION.set(session)
        return await call_next(ctx)


@jobs.before_defer
def queue_of_tenant(deferral: Deferral) -> Deferral | None:
    if isinstance(deferral.payload, OfTenant):
        return deferral.replace(queue=f"tenant-{deferral.payload.tenant}")
    return None


@jobs.after_defer
def audit(deferral: Deferral, handle: JobHandle[object]) -> None:
    print(f"{deferral.job_type} {handle.id} goes to {deferral.queue}")


@jobs.task(payload=Invoice, max_attempts=1)
def send_invoice(ctx: JobContext[Sessions], payload: Invoice) -> None:
    SESSION.get().append(f"{TENANT.get()}/{payload.number}")  # a plain function, in a thread, sees the same
    if payload.number == 0:
        raise ValueError("there is no invoice 0")


async def main() -> None:
    async with jobs, jobs.worker(queues=["tenant-north", "tenant-south"]).lifespan():
        handles = [
            await send_invoice.defer(tenant="north", number=1),
            await send_invoice.defer(tenant="south", number=2),
            await send_invoice.defer(tenant="south", number=0),
        ]
        for handle in handles:
            try:
                await handle.result(timeout=30)
            except JobFailed as error:
                print(error)


if __name__ == "__main__":
    asyncio.run(main())
