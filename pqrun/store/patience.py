"""How long a statement may take before its connection is given up: little at first, more for a database that is slow rather than away."""

__all__ = ["FIRST_SECONDS", "MOST_SECONDS", "Patience"]

FIRST_SECONDS = 3.0
"""A peer that is gone without a word is noticed after so long; the statements themselves take milliseconds."""

MOST_SECONDS = 30.0
"""The longest limit; also what a connection allows any statement for which no limit is stated."""


class Patience:
    """One limit for the statements of one duty, doubled by each one that ran out of time, back to the first with the next answer.

    A fixed short limit would never let a database under heavy load answer at all; a fixed long one would hold up every settle behind a
    dead connection.
    """

    def __init__(self, first_seconds: float = FIRST_SECONDS) -> None:
        self._first = first_seconds
        self.seconds = first_seconds

    def answered(self) -> None:
        """The database answered, whatever it said."""
        self.seconds = self._first

    def ran_out(self) -> None:
        """A statement took longer than the limit."""
        self.seconds = min(self.seconds * 2, MOST_SECONDS)
