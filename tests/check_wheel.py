"""Checks a built wheel: `python tests/check_wheel.py dist/*.whl`."""

from __future__ import annotations

import sys
import zipfile

PEERS = ("speculators", "vllm", "torch", "transformers")


def check(path: str) -> None:
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        metadata = next(wheel.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
        entry_points = next(wheel.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    required = [line.split(":")[1].strip() for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    brought_along = [line for line in required if line.startswith(PEERS) and "extra ==" not in line]
    assert not brought_along, f"installing would touch {brought_along}"
    expected = {"speculators_compat/py.typed", "speculators_compat/known_pairs.json", "speculators_compat_trial.py"}
    assert expected <= set(names), expected - set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "[vllm.general_plugins]\nspeculators_compat = speculators_compat_plugin:register" in entry_points
    assert "[console_scripts]\nspeculators-compat = speculators_compat.cli:main" in entry_points
    assert not [name for name in names if not name.startswith("speculators_compat")]
    print(f"{path}: {len(names)} files, requires {required}")


if __name__ == "__main__":
    for wheel_path in sys.argv[1:]:
        check(wheel_path)
