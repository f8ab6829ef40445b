"""Goes through vLLM's whole registry, one process per architecture, and keeps a row for each.

    python -m tests.registry.sweep RESULTS [--only NAME ...] [--kind text] [--jobs 2]

Rows that are there already are not made again; remove a row's file to repeat it.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}

import speculators_compat  # noqa: E402, F401

LIMIT = int(os.environ.get("LIMIT", 180))


def registry() -> dict[str, str]:
    """Every generating architecture that vLLM names, and its kind."""
    from vllm.model_executor.models import registry as vllm_registry

    return {
        **dict.fromkeys(vllm_registry._TEXT_GENERATION_MODELS, "text"),
        **dict.fromkeys(vllm_registry._MULTIMODAL_MODELS, "multimodal"),
    }


@dataclass(frozen=True)
class Job:
    """One architecture to examine.

    Attributes:
        architecture: Name in vLLM's registry.
        kind: `text` or `multimodal`.
        prepare: Called first in the job's process.
    """

    architecture: str
    kind: str
    prepare: Callable[[], None] = lambda: None


def _run(job: Job, path: Path, log: Path) -> None:
    """In a process of its own: do a job, and write its row to `path` and its output to `log`."""
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # Where it hangs, if it does.
    faulthandler.dump_traceback_later(LIMIT - 10)
    from vllm.model_executor.models import registry as vllm_registry
    from vllm.platforms import current_platform

    from tests.registry.probe import examine

    if current_platform.is_cpu():
        # vLLM looks at each model class in a process of its own, lest it initialise CUDA; that costs 15 s of imports.
        vllm_registry._run_in_subprocess = lambda inspect: inspect()
        # MLA has no CPU kernel; such models run as multi-head attention there.
        os.environ["VLLM_MLA_DISABLE"] = "1"
    job.prepare()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        row = examine(job.architecture, Path(scratch))
    row.kind = job.kind
    row.seconds = round(time.perf_counter() - started, 1)
    row.save(path)


def sweep(jobs: Mapping[str, Job], results: Path, at_a_time: int) -> None:
    """Do the jobs that have no row yet.

    Args:
        jobs: By the name of their rows.
        results: Where to write the rows.
        at_a_time: How many jobs run beside each other.
    """
    # Jobs are forked from this process, which hereby has imported everything, and has computed nothing.
    from tests.registry.probe import Row

    context = multiprocessing.get_context("fork")
    results.mkdir(parents=True, exist_ok=True)
    waiting = [name for name in jobs if not (results / f"{name}.json").exists()]
    running: dict[str, tuple[multiprocessing.process.BaseProcess, float]] = {}
    while waiting or running:
        while waiting and len(running) < at_a_time:
            name = waiting.pop(0)
            process = context.Process(target=_run, args=(jobs[name], results / f"{name}.json", results / f"{name}.log"))
            process.start()
            running[name] = (process, time.monotonic())
        time.sleep(0.1)
        for name, (process, started) in list(running.items()):
            path = results / f"{name}.json"
            late = time.monotonic() - started > LIMIT
            if process.is_alive() and not late:
                continue
            if process.is_alive():
                os.killpg(process.pid or 0, 9)
            process.join()
            del running[name]
            if not path.exists():
                words = f"no answer in {LIMIT} s" if late else f"the process ended with {process.exitcode}"
                Row(jobs[name].architecture, "FAILED", kind=jobs[name].kind, words=words).save(path)
            row = json.loads(path.read_text())
            print(f"{row['result']:8} {name:40} {row['deviation']} {row['words']}", row["seconds"], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--kind", default="")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    jobs = {
        name: Job(name, kind)
        for name, kind in registry().items()
        if (not options.only or name in options.only) and options.kind in ("", kind)
    }
    sweep(jobs, options.results, options.jobs)


if __name__ == "__main__":
    main()
