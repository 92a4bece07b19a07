"""enqueue.sql and find_active.sql: insert or find."""

import asyncio

from pqrun.job.state import Status
from pqrun.store import PgJobStore


async def test_an_active_key_gives_the_same_id_again(store: PgJobStore) -> None:
    first = await store.enqueue("send_email", {"user_id": 123}, dedupe_key="welcome:user:123")
    again = await store.enqueue("send_email", {"user_id": 124}, dedupe_key="welcome:user:123")
    job = await store.get(first)
    assert again == first
    assert job is not None
    assert (job.status, job.attempts, job.payload) == (Status.READY, 0, {"user_id": 123})


async def test_concurrent_duplicates_make_one_row(store: PgJobStore) -> None:
    for number in range(20):
        ids = await asyncio.gather(
            *(store.enqueue("sync", {"user_id": 7}, dedupe_key=f"sync:{number}") for _ in range(50))
        )
        assert len(set(ids)) == 1
