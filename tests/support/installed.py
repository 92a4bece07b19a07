"""What pytest finds of an installed pqrun, from the project's own pyproject.toml: an editable installation may be older than that."""

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def installed_in(folder: Path) -> str:
    """Write the entry points for pytest into the folder; return a PYTHONPATH for programs that should see them."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    facts = folder / "pqrun_as_installed-1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: pqrun-as-installed\nVersion: 1\n")
    lines = "".join(f"{name} = {module}\n" for name, module in declared.items())
    (facts / "entry_points.txt").write_text(f"[pytest11]\n{lines}")
    return os.pathsep.join([str(ROOT), str(folder)])
