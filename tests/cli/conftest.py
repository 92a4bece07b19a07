"""An app as users write it, and a folder for an embedded database."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SHOP = """\
import asyncio

from pydantic import BaseModel

from pqrun import App, IdlePollPolicy, JobContext


class Order(BaseModel):
    number: int
    card: str


class Paid(BaseModel):
    number: int
    loop: str


# Only a notification or a signal wakes a worker here.
IdlePollPolicy.next_sleep = lambda self, streak: 3600.0

jobs = App()
other = object()


@jobs.task(payload=Order)
async def pay(ctx: JobContext, payload: Order) -> Paid:
    return Paid(number=payload.number, loop=type(asyncio.get_running_loop()).__module__)


@jobs.task(payload=Order, max_attempts=1)
async def refuse(ctx: JobContext, payload: Order) -> None:
    raise ValueError("no such card")


@jobs.task
async def wait_for(ctx: JobContext, seconds: float) -> None:
    await asyncio.sleep(seconds)


@jobs.task(queue="mail")
async def send(ctx: JobContext, to: str) -> None:
    pass
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with the module shop.py, whose app is ``shop:jobs``."""
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


@pytest.fixture
def home() -> Iterator[Path]:
    """A PATH for an embedded server that every user can reach: started by root, the server runs as another one."""
    with tempfile.TemporaryDirectory(prefix="pqrun-cli-") as parent:
        Path(parent).chmod(0o755)
        yield Path(parent) / "db"
