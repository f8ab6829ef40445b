"""A user's script, seen by mypy: the public names are typed, and what is wrong is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

SCRIPT = """
import speculators_compat
from speculators_compat import PromptError, RemovedError, SpeculatorsCompatError, Status

status: Status = speculators_compat.status()
missing: tuple[str, ...] = status.missing
for decision in status.decisions:
    name: str = decision.adapter.name
    state: str = decision.state.value
try:
    speculators_compat.activate()
except (PromptError, RemovedError) as error:
    base: SpeculatorsCompatError = error
    value: ValueError | ModuleNotFoundError = error
version: str = speculators_compat.__version__
speculators_compat.deactivate()
"""
WRONG = """
import speculators_compat

speculators_compat.status().activ
speculators_compat.activate("llama")
speculators_compat.no_such_name()
number: int = speculators_compat.status().missing
"""


def mypy(folder: Path, source: str) -> str:
    (folder / "script.py").write_text(source)
    command = [sys.executable, "-m", "mypy", "--strict", "script.py", "--cache-dir", str(folder / "cache")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False).stdout


def test_a_users_script_is_typed(tmp_path: Path) -> None:
    assert mypy(tmp_path, SCRIPT).startswith("Success")


def test_mistakes_in_it_are_found(tmp_path: Path) -> None:
    found = mypy(tmp_path, WRONG)
    for line, code in ((4, "attr-defined"), (5, "call-arg"), (6, "attr-defined"), (7, "assignment")):
        assert any(f"script.py:{line}:" in words and f"[{code}]" in words for words in found.splitlines()), found
