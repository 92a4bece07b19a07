"""The examples in the docstrings."""

import doctest
from pathlib import Path
from types import ModuleType

import pytest

import pqrun.embedded
import pqrun.embedded.server


@pytest.mark.parametrize("module", [pqrun.embedded, pqrun.embedded.server])
def test_the_examples_of_a_module_run(home: Path, module: ModuleType) -> None:
    result = doctest.testmod(module, extraglobs={"folder": home})
    assert result.attempted
    assert not result.failed
