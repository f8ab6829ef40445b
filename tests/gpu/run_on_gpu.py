"""The cases of the engine tests on a machine with one or more GPUs, with CUDA vLLM and real MLA kernels.

    python tests/gpu/run_on_gpu.py [--gpus N | --quantized] [--only WORD ...] [--output docs/gpu.md]

Needs vllm, speculators and this package; makes its own checkpoints. Each run is a process of its own, as users' scripts are,
and writes one row of the table.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
REPETITIONS = 20


@dataclass(frozen=True)
class Run:
    """One process: a model, how its workers start, and which adapter is off.

    Attributes:
        model: Checkpoint of `tiny_checkpoints`.
        start: `fork` (vLLM's default) or `spawn`.
        cuda_live: Whether the caller has initialised CUDA, as producers do that set their device first.
        gpus: Tensor parallel size.
        off: Adapter to switch off.
        broken: What to take out of the package, by the function of `tests.in_worker` that does it.
        lag: Whether the GPU is kept behind the host, so that a missing wait shows.
        calls: How many more calls are made, to see what they leave.
        bit_equal: Whether repetitions have to be equal in every bit: not where the kernel adds up in any order.
        expected: What the row has to say.
    """

    model: str
    start: str = "fork"
    cuda_live: bool = False
    gpus: int = 1
    off: str = ""
    broken: str = ""
    lag: bool = False
    calls: int = 0
    bit_equal: bool = True
    expected: str = "right"

    @property
    def without(self) -> str:
        """What is switched off or taken out, in words."""
        return self.off or self.broken.removeprefix("drop_").replace("_", " ") or "nothing"


ONE_GPU = (
    Run("llama_128", calls=2000),
    Run("llama_128", lag=True),
    Run("llama_128", lag=True, broken="drop_layer_events", expected="WRONG"),
    Run("llama_128", lag=True, broken="drop_input_guard", expected="CUDA error"),
    Run("llama_128", cuda_live=True),
    Run("llama_128", start="spawn"),
    Run("deepseek_v3_mla"),
    Run("deepseek_v3_mla", start="spawn"),
    Run("deepseek_v3_mla", cuda_live=True),
    Run("deepseek_v3_mla", off="async_scheduling", expected="right, or wrong by a race"),
    Run("llama_128", off="fork_safety", expected="Cannot re-initialize CUDA in forked subprocess"),
    Run("deepseek_v3_mla", off="scheduler_block_size", expected="required positional argument: 'block_size'"),
)
TWO_GPUS = (
    Run("llama_128", gpus=2),
    Run("deepseek_v3_mla", gpus=2),
    Run("deepseek_v3_mla", start="spawn", gpus=2),
)
QUANTIZED = (
    Run("llama_int4"),
    Run("deepseek_v3_int4", bit_equal=False),
    Run("kimi_k25_int4", bit_equal=False),
    Run("llama_gptq"),
    Run("llama_awq"),
    Run("llama_fp8"),
    Run("llama_fp8_modelopt"),
    Run("llama_fp8_per_tensor"),
)


def extract(run: Run, checkpoints: Path) -> dict[str, object]:
    """In the process of a run: all cases against the reference, then one batch again and again."""
    sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
    import speculators_compat  # noqa: F401, I001  before speculators, as the README says
    import speculators  # noqa: F401
    import torch

    if run.cuda_live:
        torch.zeros(1, device="cuda")
    from reference import Reference, relative_error
    from speculators.data_generation import VllmHiddenStatesGenerator
    from tiny_checkpoints import make, text_twin

    from tests import in_worker
    from tests.cases import CASES, TOLERANCE, prompt
    from tests.growth import growth
    from tests.quantization import tolerance

    directory = make(run.model, checkpoints / run.model)
    layers = [0, 2, 3, 4]
    started = time.perf_counter()
    generator = VllmHiddenStatesGenerator(
        str(directory), layer_ids=layers, max_model_len=1100, gpu_memory_utilization=0.3, tensor_parallel_size=run.gpus
    )
    start_up = time.perf_counter() - started
    rpc = generator.executor.collective_rpc
    if run.lag:
        rpc(in_worker.lag_behind)
    if run.broken:
        rpc(getattr(in_worker, run.broken))
    answers = {name: [(batch, generator.generate(batch)) for batch in batches] for name, batches in CASES.items()}
    repeated = [prompt(length, seed) for seed, length in enumerate([700, 30, 5, 900, 16, 1, 400, 64])]
    repetitions = [generator.generate(repeated) for _ in range(REPETITIONS)]
    started_by = os.environ.get("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    grown = in_words(growth(generator, run.calls), run.calls) if run.calls else ""
    left = rpc(in_worker.held_requests)
    (weights,) = {*map(tuple, rpc(in_worker.describe_weights))}
    block_size = generator.vllm_config.cache_config.block_size
    async_scheduling = generator.vllm_config.scheduler_config.async_scheduling
    del generator, rpc

    reference = Reference(text_twin(directory), device="cuda")
    rounded = Reference(text_twin(directory), torch.bfloat16, device="cuda")
    by_rounding = max(
        relative_error(*states)
        for ids in repeated
        for states in zip(rounded.states(ids, layers), reference.states(ids, layers), strict=True)
    )
    errors: dict[str, float] = {}
    for name, batches in {**answers, "repeated": [(repeated, again) for again in repetitions]}.items():
        found = [
            relative_error(state, expected)
            for batch, results in batches
            for ids, result in zip(batch, results, strict=True)
            for state, expected in zip(result["hidden_states"], reference.states(ids, layers), strict=True)
        ]
        errors[name] = max(found)
    tensors = [[state for result in results for state in result["hidden_states"]] for results in repetitions]
    unequal = sum(
        not torch.equal(state, first) for again in tensors[1:] for state, first in zip(again, tensors[0], strict=True)
    )
    allowed = tolerance(run.model) if run in QUANTIZED else TOLERANCE[torch.bfloat16]
    right = max(errors.values()) < allowed and not (run.bit_equal and unequal) and not any(left)
    return {
        "result": "right" if right else "WRONG",
        "largest error": round(max(errors.values()), 5),
        "bfloat16 in Hugging Face": round(by_rounding, 5),
        "unequal tensors": f"{unequal} of {sum(map(len, tensors[1:]))}",
        "requests left": left,
        "started by": started_by,
        "block size": block_size,
        "async scheduling": async_scheduling,
        "start-up s": round(start_up, 1),
        "left by calls": grown,
        "weights": ", ".join(weights),
        "errors": errors,
    }


def in_words(grown: Sequence[dict[str, int]], calls: int) -> str:
    """What calls have left, by process: the caller, and its workers."""
    parts = []
    for process, kinds in enumerate(grown):
        left = ", ".join(f"{count} {what}" for what, count in kinds.items() if count)
        parts.append(f"in {'a worker' if process else 'the caller'} {left or 'nothing'}")
    return f"{calls}: " + "; ".join(parts)


def in_a_process(run: Run, checkpoints: Path, timeout: float) -> dict[str, object]:
    """Start the process of a run, and read its row from the last line that it prints."""
    environment = {**os.environ, "SPECULATORS_COMPAT_DISABLE": run.off} if run.off else dict(os.environ)
    # This process has set it on importing speculators_compat; a user's has not.
    environment.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    if run.start == "spawn":
        environment["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    command = [sys.executable, __file__, "--run", json.dumps(asdict(run)), "--checkpoints", str(checkpoints)]
    try:
        process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return {"result": f"no answer in {timeout} s"}
    if process.returncode == 0:
        row: dict[str, object] = json.loads(process.stdout.splitlines()[-1])
        return row
    output = process.stdout + process.stderr
    (checkpoints / "last-failure.log").write_text(output)
    if run.expected != "right" and run.expected in output and "out of memory" not in output:
        return {"result": run.expected}
    print(output[-6000:], file=sys.stderr)
    # The first error is the worker's own; what the caller raises only points to it.
    words = re.findall(r"\b\w+(?:Error|Exception): .+", output) or process.stderr.strip().splitlines()[-1:]
    return {"result": f"failed: {words[0][:200]}"}


def describe_machine() -> str:
    sys.path.insert(0, str(ROOT / "src"))
    import torch

    import speculators_compat

    found = "\n".join(f"- {one}" for one in speculators_compat.status().installed)
    if (v2 := os.environ.get("VLLM_USE_V2_MODEL_RUNNER")) is not None:
        found += f"\n- VLLM_USE_V2_MODEL_RUNNER={v2}"
    return f"{time.strftime('%Y-%m-%d')}, {torch.cuda.device_count()} x {torch.cuda.get_device_name()}\n\n{found}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--quantized", action="store_true", help="quantised checkpoints instead")
    parser.add_argument("--only", nargs="*", metavar="WORD", help="only runs that have one of these, as `lag=True`")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--checkpoints", type=Path, default=Path(tempfile.gettempdir()) / "tiny-checkpoints")
    parser.add_argument("--timeout", type=float, default=150)
    parser.add_argument("--run")
    options = parser.parse_args()
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    if options.run:
        print(json.dumps(extract(Run(**json.loads(options.run)), options.checkpoints)))
        return
    columns = ["model", "start", "CUDA live", "GPUs", "without", "result", "largest error", "unequal tensors"]
    columns += ["bfloat16 in Hugging Face", "requests left", "started by", "block size", "async scheduling", "start-up s"]
    columns.append("weights" if options.quantized else "left by calls")
    runs = QUANTIZED if options.quantized else TWO_GPUS if options.gpus > 1 else ONE_GPU
    failed = False
    with options.output.open("a") if options.output else sys.stdout as file:
        print(f"## {describe_machine()}", "", row_of(columns), row_of(["---"] * len(columns)), sep="\n", file=file, flush=True)
        for run in runs:
            if options.only and not any(word in str(run) for word in options.only):
                continue
            row = in_a_process(run, options.checkpoints, options.timeout)
            failed |= str(row["result"]) not in ([run.expected] if run.broken else [run.expected, "right"])
            cells = [run.model, run.start + ", lagging" * run.lag, run.cuda_live, run.gpus, run.without]
            print(row_of([*cells, *(row.get(column, "") for column in columns[5:])]), file=file, flush=True)
            print(run, row["result"], row.get("errors", ""), file=sys.stderr)
        print(file=file)
    sys.exit(failed)


def row_of(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
