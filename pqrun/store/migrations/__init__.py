"""Numbered SQL migrations: forward only, each in one transaction under a lock (``pqrun.store.migrate``)."""
