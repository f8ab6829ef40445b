"""What importing this package costs, and what it adds to importing speculators."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

# What is slow, and what speculators imports itself, is imported before the clock starts.
IMPORT = """
import importlib, time
{before}
started = time.perf_counter()
{timed}
print("TOOK", time.perf_counter() - started)
"""
SLOW = "import torch, transformers, vllm.v1.core.sched.scheduler, vllm.v1.executor.multiproc_executor"
SPECULATORS = "import speculators.data_generation.vllm_hidden_states_generator"
PACKAGE = "import speculators_compat"


def startup(repeat: int) -> dict[str, list[float]]:
    """Seconds, run by run, each in a process of its own: with and without the package by turns."""
    took: dict[str, list[float]] = {"import speculators_compat": [], "import speculators": [], "both": []}
    for _ in range(repeat):
        took["import speculators_compat"].append(_time("", PACKAGE))
        took["import speculators"].append(_time(SLOW, SPECULATORS))
        took["both"].append(_time(SLOW, f"{PACKAGE}\n{SPECULATORS}"))
    return took


def added(took: dict[str, list[float]]) -> float:
    """What the package adds to importing speculators, in seconds."""
    return median(both - alone for both, alone in zip(took["both"], took["import speculators"], strict=True))


def _time(before: str, timed: str) -> float:
    script = IMPORT.format(before=before, timed=timed)
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(process.stdout.rpartition("TOOK")[2])


if __name__ == "__main__":
    times = startup(repeat=5)
    for name, seconds in times.items():
        print(f"{name}: {1000 * median(seconds):.1f} ms (of {len(seconds)}: {min(seconds):.4f} to {max(seconds):.4f} s)")
    print(f"added to importing speculators: {1000 * added(times):.1f} ms")
