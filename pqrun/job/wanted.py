"""What an operator wants of a worker, as it stands in the registry: JSON whose keys say what is to change; unknown ones are left alone.

``queues``: an object of names and numbers (null: without one), or null for all queues; ``concurrency``: a number, or null for what the
numbers add up to; ``fetching``: false to claim nothing, true to go on; ``drain``: true to end; ``stacks``: any text, of which each new one
asks where the handlers are.
"""

import json
from typing import Final

import msgspec

from pqrun.errors import OptionError
from pqrun.job.serving import QueueChoice, check_concurrency, check_queues

__all__ = ["UNCHANGED", "Orders", "apply_wanted", "read_orders", "wanted_text"]

UNCHANGED: Final = msgspec.UNSET
"""An option that is not to change."""


class Orders(msgspec.Struct, frozen=True):
    """What is wanted beside queues and numbers; what is absent, or of another type, was not said."""

    fetching: bool | None = None
    drain: bool = False
    stacks: str | None = None


def wanted_text(
    queues: object = UNCHANGED, concurrency: object = UNCHANGED, fetching: object = UNCHANGED, **orders: bool | str
) -> str:
    """Return what is wanted as JSON text; raises OptionError for what no worker could do."""
    wanted: dict[str, object] = {}
    if queues is not UNCHANGED:
        choice = check_queues(queues)
        named = {name: choice.numbers.get(name) for name in choice.queues or ()}
        wanted["queues"] = None if choice.queues is None else named
    if concurrency is not UNCHANGED:
        wanted["concurrency"] = None if concurrency is None else check_concurrency(concurrency)
    if fetching is not UNCHANGED:
        if not isinstance(fetching, bool):
            raise OptionError(f"fetching: expected True or False; got {fetching!r:.80}")
        wanted["fetching"] = fetching
    return json.dumps({**wanted, **orders})


def read_orders(text: str) -> Orders:
    """Read what is wanted beside queues and numbers; of a text that is no JSON object, nothing."""
    try:
        wanted = msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError:
        return Orders()
    fetching, stacks = wanted.get("fetching"), wanted.get("stacks")
    return Orders(
        fetching=fetching if isinstance(fetching, bool) else None,
        drain=wanted.get("drain") is True,
        stacks=stacks if isinstance(stacks, str) else None,
    )


def apply_wanted(text: str, choice: QueueChoice) -> QueueChoice:
    """Return the choice with what is wanted; raises OptionError for what this worker cannot do."""
    try:
        wanted = msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError:
        raise OptionError("wanted: expected a JSON object") from None
    if "queues" in wanted:
        asked = check_queues(wanted["queues"])
        choice = QueueChoice(asked.queues, asked.numbers, choice.concurrency)
    if "concurrency" in wanted:
        number = wanted["concurrency"]
        concurrency = None if number is None else check_concurrency(number)
        choice = msgspec.structs.replace(choice, concurrency=concurrency)
    choice.serving()
    return choice
