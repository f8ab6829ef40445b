"""Fixtures of the tests that need neither vLLM nor torch."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]

# Stand-ins for upstream's modules and what they import: enough for activation, not for extraction.
FAKE_GENERATOR = """
from fake_vllm import Request, Scheduler


class VllmHiddenStatesGenerator:
    def __init__(self, model_path):
        self.model_path = model_path

    def generate(self, token_ids):
        return [Request(ids) for ids in token_ids]
"""
FAKE_ADAPTERS = """
from speculators_compat.adapter import Adapter, Finding, GENERATOR_MODULE, Patch, generator_global, generator_method
import speculators_compat.registry as registry, speculators_compat.extraction as extraction

def tagging(tag):
    def wrapper(wrapped, instance, args, kwargs):
        return (tag, wrapped(*args, **kwargs))
    return wrapper

def adapter(name, *patches, probe=lambda: Finding.broken("it is broken")):
    return Adapter(name, "contract", "symptom of " + name, ">=0", ">=0", "nobody", "never", probe, patches)

def install(*adapters):
    registry.ADAPTERS = adapters
    extraction.CORE_PATCHES = ()
"""


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Runs a script in a fresh process in which fake `speculators` and `fake_vllm` can be imported."""
    package = tmp_path / "speculators" / "data_generation"
    package.mkdir(parents=True)
    (tmp_path / "speculators" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from .vllm_hidden_states_generator import VllmHiddenStatesGenerator\n")
    (package / "vllm_hidden_states_generator.py").write_text(FAKE_GENERATOR)
    (tmp_path / "fake_vllm.py").write_text(
        "class Request:\n    def __init__(self, ids): self.ids = ids\n\nclass Scheduler: pass\n"
    )
    (tmp_path / "fake_adapters.py").write_text(FAKE_ADAPTERS)

    def run(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(source))
        return fresh_python(tmp_path, str(script), **environment)

    return run


def fresh_python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python, in a fresh process that can import what is in `folder`, and in which nothing is switched off."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPECULATORS_COMPAT_")}
    return subprocess.run(
        [sys.executable, *arguments],
        env={**kept, "PYTHONPATH": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
