"""The command line: ``pqrun migrate``, ``worker``, ``demo`` and ``bench``."""
