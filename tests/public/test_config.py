"""The WORKER_* variables and the DSN, read from a dict instead of the process's environment."""

import logging
import re
from datetime import timedelta

import pytest
from msgspec.structs import replace

from pqrun.config import (
    MISSING_DSN,
    WORKER_VARIABLES,
    WorkerOverrides,
    WorkerSettings,
    WorkerVariable,
    dsn_from,
    require_dsn,
    resolve_worker_settings,
)
from pqrun.errors import ConfigurationError, OptionError

DEFAULTS = WorkerSettings(
    enabled=True,
    enable_reaper=True,
    concurrency=1,
    reap_interval_seconds=60.0,
    stale_timeout_seconds=1200.0,
    shutdown_grace_seconds=10.0,
    shutdown_timeout_seconds=30.0,
)
DURATIONS = [variable for variable in WORKER_VARIABLES if variable.field.endswith("_seconds")]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "pqrun"]


def test_without_any_source_the_defaults_hold(caplog: pytest.LogCaptureFixture) -> None:
    assert resolve_worker_settings(environ={}) == DEFAULTS
    assert not warnings_of(caplog)


def test_every_variable_is_read(caplog: pytest.LogCaptureFixture) -> None:
    environ = {
        "WORKER_ENABLED": "false",
        "WORKER_REAPER_ENABLED": "0",
        "WORKER_CONCURRENCY": "8",
        "WORKER_REAP_INTERVAL": "0.5",
        "WORKER_STALE_TIMEOUT": "30",
        "WORKER_SHUTDOWN_GRACE": "0",
        "WORKER_SHUTDOWN_TIMEOUT": " 2.5 ",
    }
    assert set(environ) == {variable.name for variable in WORKER_VARIABLES}
    assert resolve_worker_settings(environ=environ) == WorkerSettings(
        enabled=False,
        enable_reaper=False,
        concurrency=8,
        reap_interval_seconds=0.5,
        stale_timeout_seconds=30.0,
        shutdown_grace_seconds=0.0,
        shutdown_timeout_seconds=2.5,
    )
    assert not warnings_of(caplog)


def test_a_variable_names_fields_that_exist() -> None:
    assert {variable.option for variable in WORKER_VARIABLES} == set(WorkerOverrides.__struct_fields__)
    assert {variable.field for variable in WORKER_VARIABLES} == set(WorkerSettings.__struct_fields__)


def test_the_flag_counts_before_the_environment_and_that_before_the_constructor() -> None:
    flags, given = WorkerOverrides(concurrency=2), WorkerOverrides(concurrency=4)
    environ = {"WORKER_CONCURRENCY": "3"}
    assert resolve_worker_settings(flags=flags, environ=environ, given=given).concurrency == 2
    assert resolve_worker_settings(environ=environ, given=given).concurrency == 3
    assert resolve_worker_settings(environ={}, given=given).concurrency == 4


def test_false_and_zero_are_values_and_not_absences() -> None:
    settings = resolve_worker_settings(
        environ={"WORKER_ENABLED": "true", "WORKER_SHUTDOWN_GRACE": "5"},
        flags=WorkerOverrides(enabled=False, shutdown_grace=0),
    )
    assert settings.enabled is False
    assert settings.shutdown_grace_seconds == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, True) for text in ("true", "TRUE", "1", "yes", "On")),
        *((text, False) for text in ("false", "False", "0", "no", "OFF", " off ")),
    ],
)
def test_a_switch_is_read_in_the_usual_spellings(text: str, expected: bool) -> None:
    assert resolve_worker_settings(environ={"WORKER_ENABLED": text}).enabled is expected


@pytest.mark.parametrize("text", ["abc", "0", "-2", "", " ", "1.5", "10001", "9" * 5000, "nan", "1\n2", "\ud800"])
def test_a_bad_concurrency_is_reported_once_and_the_constructors_counts(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = resolve_worker_settings(environ={"WORKER_CONCURRENCY": text}, given=WorkerOverrides(concurrency=4))
    assert settings.concurrency == 4
    (warning,) = warnings_of(caplog)
    assert warning.startswith(f"WORKER_CONCURRENCY={repr(text)[:40]}")
    assert warning.endswith("using 4 instead (from concurrency=)")
    assert "\n" not in warning
    assert len(warning) < 250
    assert caplog.records[0].levelno == logging.WARNING


@pytest.mark.parametrize("variable", DURATIONS, ids=lambda variable: variable.name)
@pytest.mark.parametrize("text", ["abc", "-1", "", "nan", "inf", "1e400", "10s", "1e12"])
def test_a_bad_duration_is_reported_once_and_the_default_counts(
    variable: WorkerVariable, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert resolve_worker_settings(environ={variable.name: text}) == DEFAULTS
    (warning,) = warnings_of(caplog)
    assert warning.startswith(f"{variable.name}={text!r}: expected seconds, ")
    assert warning.endswith(f"using {variable.default:g} instead (the default)")


@pytest.mark.parametrize("variable", DURATIONS, ids=lambda variable: variable.name)
def test_only_the_grace_may_be_zero(variable: WorkerVariable, caplog: pytest.LogCaptureFixture) -> None:
    resolve_worker_settings(environ={variable.name: "0"})
    assert len(warnings_of(caplog)) == (0 if variable.name == "WORKER_SHUTDOWN_GRACE" else 1)


def test_each_bad_variable_has_its_own_warning(caplog: pytest.LogCaptureFixture) -> None:
    environ = {variable.name: "?" for variable in WORKER_VARIABLES}
    assert resolve_worker_settings(environ=environ) == DEFAULTS
    assert [text.split("=")[0] for text in warnings_of(caplog)] == list(environ)
    assert "WORKER_ENABLED='?': expected true or false; using true instead (the default)" in warnings_of(caplog)


def test_a_bad_variable_that_a_flag_overrides_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    resolve_worker_settings(environ={"WORKER_CONCURRENCY": "abc"}, flags=WorkerOverrides(concurrency=2))
    assert not warnings_of(caplog)


def test_durations_in_code_are_timedeltas_or_seconds() -> None:
    settings = resolve_worker_settings(
        environ={},
        given=WorkerOverrides(default_stale_after=timedelta(minutes=2), shutdown_timeout=45, shutdown_grace=1.5),
    )
    assert settings.stale_timeout_seconds == 120.0
    assert settings.shutdown_timeout_seconds == 45.0
    assert settings.shutdown_grace_seconds == 1.5


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True, 10**30, float("nan")])
def test_an_impossible_concurrency_in_code_is_refused_by_name_even_if_overridden(value: int) -> None:
    environ = {"WORKER_CONCURRENCY": "3"}
    with pytest.raises(OptionError, match=r"^concurrency: expected a whole number, at least 1 and at most 10000; got "):
        resolve_worker_settings(environ=environ, given=WorkerOverrides(concurrency=value))
    with pytest.raises(OptionError, match=r"^--concurrency: expected"):
        resolve_worker_settings(environ=environ, flags=WorkerOverrides(concurrency=value))


@pytest.mark.parametrize("variable", DURATIONS, ids=lambda variable: variable.name)
@pytest.mark.parametrize("value", [-1, timedelta(seconds=-1), float("nan"), float("inf"), 10**400, "60", timedelta.max])
def test_an_impossible_duration_in_code_is_refused_by_name(variable: WorkerVariable, value: float) -> None:
    with pytest.raises(OptionError, match=f"^{variable.option}: expected seconds"):
        resolve_worker_settings(environ={}, given=replace(WorkerOverrides(), **{variable.option: value}))
    with pytest.raises(OptionError, match=f"^{variable.flag}: expected seconds"):
        resolve_worker_settings(environ={}, flags=replace(WorkerOverrides(), **{variable.option: value}))


@pytest.mark.parametrize("value", [1, 0, "yes", "false"])
def test_a_switch_in_code_takes_only_booleans(value: bool) -> None:
    with pytest.raises(OptionError, match=r"^enabled: expected true or false"):
        resolve_worker_settings(environ={}, given=WorkerOverrides(enabled=value))


def test_a_grace_longer_than_the_timeout_is_shortened_and_reported_if_somebody_asked_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = WorkerOverrides(shutdown_timeout=4)
    assert resolve_worker_settings(environ={}, given=given).shutdown_grace_seconds == 4.0
    assert not warnings_of(caplog)
    assert resolve_worker_settings(environ={"WORKER_SHUTDOWN_GRACE": "60"}).shutdown_grace_seconds == 30.0
    assert warnings_of(caplog) == ["shutdown_grace (60 s) is longer than shutdown_timeout; using 30 s instead"]


def test_flags_are_named_after_the_variables() -> None:
    assert [variable.flag for variable in WORKER_VARIABLES] == [
        "--enabled",
        "--reaper-enabled",
        "--concurrency",
        "--reap-interval",
        "--stale-timeout",
        "--shutdown-grace",
        "--shutdown-timeout",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:p@h:1/d?sslmode=require",
        "postgres://u:p@h:1/d?sslmode=require",
        "postgresql+asyncpg://u:p@h:1/d?sslmode=require",
        "postgresql+psycopg2://u:p@h:1/d?sslmode=require",
        "PostgreSQL://u:p@h:1/d?sslmode=require",
    ],
)
def test_the_usual_spellings_of_a_postgresql_dsn_are_made_one(text: str) -> None:
    expected = "postgresql://u:p@h:1/d?sslmode=require"
    assert dsn_from(text, {}) == expected
    assert dsn_from(None, {"PQRUN_DSN": text}) == expected
    assert dsn_from(None, {"DATABASE_URL": f" {text}\n"}) == expected


def test_the_dsn_given_in_code_counts_first_then_pqrun_dsn_then_database_url() -> None:
    environ = {"PQRUN_DSN": "postgresql://second/", "DATABASE_URL": "postgresql://third/"}
    assert dsn_from("postgresql://first/", environ) == "postgresql://first/"
    assert dsn_from(None, environ) == "postgresql://second/"
    assert dsn_from(None, {**environ, "PQRUN_DSN": ""}) == "postgresql://third/"
    assert dsn_from(None, {}) is None


def test_an_embedded_database_keeps_its_path() -> None:
    assert dsn_from("embedded:./my data", {}) == "embedded:./my data"
    assert require_dsn(None, {"DATABASE_URL": "embedded:/var/x"}) == "embedded:/var/x"


def test_a_missing_dsn_names_every_way_to_give_one() -> None:
    with pytest.raises(ConfigurationError, match=re.escape(MISSING_DSN)):
        require_dsn(None, {"DATABASE_URL": " "})
    for way in ("App(dsn=", "App(pool=", "App(store=", "PQRUN_DSN", "DATABASE_URL", "embedded:PATH"):
        assert way in MISSING_DSN


@pytest.mark.parametrize(
    ("text", "came"),
    [
        ("mysql://u:secret@h/d", "one that begins with mysql://"),
        ("sqlite:///secret.db", "one that begins with sqlite://"),
        ("host=h password=secret", "text without a scheme"),
        ("u:secret@h/d", "text without a scheme"),
        (" ", "empty text"),
        (b"postgresql://secret", "a bytes"),
    ],
)
def test_what_is_no_dsn_is_refused_without_showing_it(text: str, came: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^dsn: expected a DSN such as .* got {re.escape(came)}") as caught:
        dsn_from(text, {})
    assert "secret" not in str(caught.value)


def test_a_variable_that_holds_no_dsn_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"^DATABASE_URL: expected a DSN"):
        dsn_from(None, {"DATABASE_URL": "mysql://u:secret@h/d"})
