"""The manifests in docs/health.md: flags that exist, probes that are answered, and times that leave room for each other."""

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from pqrun.health.server import BLOCKED_AFTER_DEFAULT
from tests.cli.running import environment, run_command

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "health.md").read_text()


def block(kind: str) -> str:
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
def pod() -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load(block("yaml"))["spec"]["template"]["spec"]
    return spec


def seconds(arguments: list[str], flag: str) -> float:
    text = " ".join(arguments)
    (found,) = re.findall(rf"{flag}[= ]([\d.]+)", text)
    return float(found)


async def help_of_worker() -> str:
    code, text = await run_command("worker", "--help", env=environment(COLUMNS="200"))
    assert code == 0
    return text


async def test_kubernetes_waits_longer_than_the_worker_takes_and_asks_what_is_there(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    arguments = container["args"]
    text = await help_of_worker()
    for argument in arguments:
        assert re.search(rf"(?<![\w-]){argument.partition('=')[0]}\b", text), argument
    assert seconds(arguments, "--shutdown-grace") < seconds(arguments, "--shutdown-timeout")
    assert seconds(arguments, "--shutdown-timeout") < pod["terminationGracePeriodSeconds"]
    (port,) = container["ports"]
    assert port["containerPort"] == seconds(arguments, "--health-port")
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    assert f"has not for {BLOCKED_AFTER_DEFAULT:g} s" in PAGE


async def test_systemd_waits_longer_than_the_worker_takes() -> None:
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # keys are written as systemd has them
    unit.read_string(block("text"))
    service = unit["Service"]
    arguments = shlex.split(service["ExecStart"])
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert seconds(arguments, "--shutdown-timeout") < float(service["TimeoutStopSec"])
    text = await help_of_worker()
    for argument in arguments:
        if argument.startswith("--"):
            assert argument in text
