"""``python -m pqrun``: the command line, where no script was installed."""

from pqrun.cli.main import run

if __name__ == "__main__":
    run()
