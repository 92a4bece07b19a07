"""``python -m benchmarks.chaos``: the same as ``python -m benchmarks chaos``."""

import sys

from benchmarks.__main__ import run

if __name__ == "__main__":
    run("chaos", sys.argv[1:], "python -m benchmarks.chaos")
