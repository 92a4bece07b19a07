"""A script without an event loop: it enqueues, waits for a result, looks and cancels. Its worker may as well be another process."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from pqrun import App, JobContext

jobs = App()


@dataclass
class Invoice:
    number: str


@jobs.task(dedupe_key="invoice:{order_id}")
def write_invoice(ctx: JobContext, order_id: int) -> Invoice:
    remind.options(run_after=timedelta(days=14)).defer_sync(
        order_id
    )  # a plain function: through its worker's connections
    return Invoice(f"2026-{order_id}")


@jobs.task
def remind(ctx: JobContext, order_id: int) -> None: ...


@contextmanager
def worker_in_a_thread() -> Iterator[None]:
    worker = jobs.worker(concurrency=2)
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def main() -> None:
    job = write_invoice.defer_sync(order_id=1)
    again = write_invoice.defer_sync(order_id=1)
    print("created:", job.created, again.created, job.id == again.id)
    print("status:", job.status_sync().value)

    others = jobs.defer_many_sync(write_invoice.call(order_id) for order_id in range(2, 5))
    print("cancel:", others[-1].cancel_sync().value)

    with worker_in_a_thread():
        print("invoice:", job.result_sync(timeout=30).number)
        print("others:", [other.result_sync(timeout=30).number for other in others[:-1]])
    print("last:", others[-1].status_sync().value)


if __name__ == "__main__":
    main()
