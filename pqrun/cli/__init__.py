"""The command line: ``pqrun migrate``, ``worker``, ``check``, ``demo`` and ``bench``."""
