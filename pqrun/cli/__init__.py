"""The command line: see docs/cli.md, or ``pqrun --help``."""
