"""A DSN that does not work is told clearly, and its password nowhere: not in the error, its chain, a log or a repr."""

import logging
import traceback
from collections.abc import Iterator

import pytest

from pqrun.errors import ConfigurationError, DatabaseUnavailableError, PqrunError
from pqrun.store import PgJobStore
from pqrun.store.connecting import check_dsn, describe_dsn
from tests.support.database import with_database

SECRETS = ("Sup3rSecret", "hunter2", "Sup3r", "Secret")

MALFORMED = [
    "postgresql://app:Sup3rSecret#1@h/db",
    "postgresql://app:Sup3rSecret#1@h/db?password=hunter2",
    "host=h password=hunter2",
    "host=h password=hunter2 dbname=postgresql://x",
    "postgresql://app:Sup3rSecret/1@h/db",
    "postgresql://app:Sup3r/Secret@h/db",
    "postgresql://app:1/Sup3rSecret@h/db",
    "postgresql://app:1?Sup3rSecret@h/db",
    "postgresql://app:Sup3rSecret?x=1@h/db",
    "postgresql://app:Sup3r[Secret@h/db",
    "postgresql://app:Sup3r]Secret@h/db",
    "postgresql://app:[Sup3rSecret]@h/db",
    "postgresql://app:Sup3rSecret@h:port/db",
    "postgresql://app:Sup3rSecret@h:54:32/db",
    "postgresql://app:Sup3rSecret@h:65536/db",
    "postgresql://app:Sup3rSecret\u2100@h/db",
    "mysql://app:Sup3rSecret@h/db",
    "postgresql:app:Sup3rSecret@h/db",
    "Sup3rSecret",
    "",
]

UNREACHABLE = [
    "postgresql://app:Sup3rSecret%231@127.0.0.1:1/db",
    "postgresql://app@127.0.0.1:1/db?password=hunter2",
    "postgresql+asyncpg://app:Sup3rSecret@127.0.0.1:1/db",
    "postgres://app:Sup3r@Secret@127.0.0.1:1/db",
    "postgresql://app:Sup3rSecret:x@[::1]:1/db",
    "postgresql://app:Sup3rSecret@127.0.0.1:1,127.0.0.1:2/db",
    "postgresql:///db?host=/nowhere&user=app&password=hunter2",
    "postgresql://app:Sup3rSecret@/db?host=/nowhere&sslmode=hunter2",
    "postgresql://app:Sup3rSecret@127.0.0.1/db?hunter2=1&port=hunter2",
    "postgresql://app:Sup3rSecret@127.0.0.1/db?port=99999999",
]


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and everything that it carries along."""
    if error is not None:
        yield error
        yield from chain(error.__cause__)
        yield from chain(error.__context__)


def assert_keeps_secrets(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    texts = [text for link in chain(error) for text in (str(link), repr(link), repr(link.args))]
    texts += [line for line in traceback.format_exception(error) if not line.lstrip().startswith("File")]
    texts += [record.getMessage() for record in caplog.records]
    for secret in SECRETS:
        assert not [text for text in texts if secret in text]


@pytest.mark.parametrize("dsn", MALFORMED)
def test_a_malformed_dsn_is_refused_without_being_shown(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ConfigurationError, match="expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE") as caught:
        PgJobStore(dsn)
    assert_keeps_secrets(caught.value, caplog)


@pytest.mark.parametrize("dsn", UNREACHABLE)
async def test_a_dsn_that_leads_nowhere_is_told_without_being_shown(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = PgJobStore(dsn)
    for secret in SECRETS:
        assert secret not in repr(store)
    for act in (store.migrate, store.check_schema, lambda: store.get(1), lambda: store.enqueue("t", {})):
        with pytest.raises((ConfigurationError, DatabaseUnavailableError)) as caught:
            async with store:
                await act()
        assert_keeps_secrets(caught.value, caplog)


async def test_each_way_to_a_connection_raises_an_error_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    async with PgJobStore("postgresql://app:Sup3rSecret@127.0.0.1:1/db") as store:
        for lent in (store.connection(), store.transaction(), store.open_link("claim", kept=True).transaction()):
            with pytest.raises(DatabaseUnavailableError, match=r"cannot connect to 127\.0\.0\.1:1/db: ") as caught:
                async with lent:
                    raise AssertionError
            assert_keeps_secrets(caught.value, caplog)


async def test_a_database_that_does_not_exist_is_named(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    elsewhere = with_database(dsn, "nowhere").replace("postgres@", "postgres:Sup3rSecret@")
    async with PgJobStore(elsewhere) as store:
        with pytest.raises(
            DatabaseUnavailableError, match=r'/nowhere: database "nowhere" does not exist \(SQLSTATE 3D000\)'
        ) as caught:
            await store.get(1)
    assert_keeps_secrets(caught.value, caplog)


def test_one_of_dsn_and_pool_must_be_given() -> None:
    with pytest.raises(ConfigurationError, match="give either dsn= or pool="):
        PgJobStore()


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://app:p@h:5433/db?password=x", "h:5433/db"),
        ("postgresql://h/db", "h/db"),
        ("postgresql:///db?host=%2Frun%2Fpg&user=a", "/run/pg/db"),
        ("postgresql://", "the default host"),
        ("postgresql://a@h1:1,h2:2/db", "h1:1,h2:2/db"),
    ],
)
def test_host_and_database_may_be_shown(dsn: str, shown: str) -> None:
    assert describe_dsn(check_dsn(dsn)) == shown
    assert repr(PgJobStore(dsn)) == f"PgJobStore({shown}, schema='pqrun')"


def test_the_dsn_of_sqlalchemy_is_accepted() -> None:
    assert check_dsn("postgresql+asyncpg://a@h/db") == "postgresql://a@h/db"


def test_all_errors_of_connecting_are_in_our_tree() -> None:
    assert issubclass(ConfigurationError, PqrunError)
    assert issubclass(DatabaseUnavailableError, PqrunError)
