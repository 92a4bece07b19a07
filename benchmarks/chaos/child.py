"""What producers and workers of a run have in common: they end with the process that started them."""

import os
import sys
import threading

__all__ = ["end_with_parent"]


def end_with_parent() -> None:
    """End this process at once when its standard input ends, which its parent holds open and never writes to."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=wait, name="end with parent", daemon=True).start()
