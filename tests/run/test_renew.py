"""Renewing: what is asked, and who is told."""

from collections.abc import Sequence

from pqrun.errors import DatabaseUnavailableError
from pqrun.job.policy import LoopErrorPolicy
from pqrun.job.record import Claim
from pqrun.run.events import Events, LoopFailed
from pqrun.run.renew import Renewer
from pqrun.store.settling import Renewal
from tests.support.waiting import Recorder, wait_until

KEPT, LOST, CANCELLED = Claim(1, 11), Claim(2, 12), Claim(3, 13)


class Store:
    def __init__(self) -> None:
        self.asked: list[list[Claim]] = []
        self.failures: list[Exception] = []

    async def renew(self, claims: Sequence[Claim]) -> Renewal:
        self.asked.append(list(claims))
        if self.failures:
            raise self.failures.pop(0)
        held = frozenset(claims) - {LOST}
        return Renewal(held, held & {CANCELLED})


class Held:
    def __init__(self, *claims: Claim) -> None:
        self.present = list(claims)
        self.lost: list[Claim] = []
        self.cancelled: list[Claim] = []
        self.told = 0

    def claims(self) -> list[Claim]:
        return self.present

    def lose(self, claims: Sequence[Claim]) -> None:
        self.told += 1
        self.lost.extend(claims)

    def cancel(self, claims: Sequence[Claim]) -> None:
        self.cancelled.extend(claims)


async def test_claims_that_do_not_come_back_are_lost_and_cancels_are_handed_on() -> None:
    store, held = Store(), Held(KEPT, LOST, CANCELLED)
    renewer = Renewer(store, held, events=Events(), policy=LoopErrorPolicy())
    renewer.service.start()
    await wait_until(lambda: held.told)
    assert await renewer.service.stop(30)
    assert (held.lost, held.cancelled) == ([LOST], [CANCELLED])


async def test_nothing_is_asked_without_claims() -> None:
    store, held = Store(), Held()
    renewer = Renewer(store, held, events=Events(), policy=LoopErrorPolicy())
    assert await renewer._tick() > 0
    assert (store.asked, held.told) == ([], 0)


async def test_a_wake_up_asks_at_once() -> None:
    store, held = Store(), Held(KEPT)
    renewer = Renewer(store, held, events=Events(), policy=LoopErrorPolicy())
    renewer.service.start()
    for count in range(1, 5):
        await wait_until(lambda count=count: len(store.asked) >= count, seconds=0.9 * count)  # type: ignore[misc]  # a default binds it
        renewer.service.wake()
    assert await renewer.service.stop(30)


async def test_nothing_is_concluded_while_the_database_is_away() -> None:
    store, held, events = Store(), Held(LOST), Events()
    heard = Recorder(events)
    store.failures = [DatabaseUnavailableError("gone")] * 2
    renewer = Renewer(store, held, events=events, policy=LoopErrorPolicy())
    renewer.service.start()
    await heard.wait_for(LoopFailed, count=2)
    assert held.told == 0
    await wait_until(lambda: held.lost == [LOST])
    assert await renewer.service.stop(30)
