"""What an operator wants of a worker, as it stands in the registry: JSON whose keys say what is to change; unknown ones are left alone.

``queues``: an object of names and numbers (null: without one), or null for all queues; ``concurrency``: a number, or null for what the
numbers add up to.
"""

import json
from typing import Final

import msgspec

from pqrun.errors import OptionError
from pqrun.job.serving import QueueChoice, check_concurrency, check_queues

__all__ = ["UNCHANGED", "apply_wanted", "wanted_text"]

UNCHANGED: Final = msgspec.UNSET
"""An option that is not to change."""


def wanted_text(queues: object = UNCHANGED, concurrency: object = UNCHANGED) -> str:
    """Return what is wanted as JSON text; raises OptionError for what no worker could do."""
    wanted: dict[str, object] = {}
    if queues is not UNCHANGED:
        choice = check_queues(queues)
        named = {name: choice.numbers.get(name) for name in choice.queues or ()}
        wanted["queues"] = None if choice.queues is None else named
    if concurrency is not UNCHANGED:
        wanted["concurrency"] = None if concurrency is None else check_concurrency(concurrency)
    return json.dumps(wanted)


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
