"""Where jobs live: PostgreSQL. Only here asyncpg and SQL."""

from pqrun.store.pg import PgJobStore

__all__ = ["PgJobStore"]
