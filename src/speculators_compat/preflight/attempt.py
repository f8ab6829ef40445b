"""Writes a small model beside links to the checkpoint's own files, and tries it in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from speculators_compat.adapter import Adapter
from speculators_compat.preflight.shrinking import LAYERS, VOCABULARY, WINDOW, Config, decoder_config, number, shrink
from speculators_compat.preflight.trial import Check, Options
from speculators_compat.symptoms import cures

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json", ".onnx", ".msgpack", ".h5")
# A small KV cache; and there is no kernel for multi-head latent attention.
ON_A_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_MLA_DISABLE": "1"}
# A path of a Unix socket has 107 characters; vLLM appends a UUID.
LONGEST_SOCKET_FOLDER = 60
# Seconds for processes to end in, when they are told to.
GRACE = 5.0
# All that the caller learns when a worker does not start; why it did not is in the log.
WORKER_FAILED = "WorkerProc initialization failed"
# With -c there is no main module that spawned workers would import, and be activated by.
PROGRAM = "from speculators_compat.preflight.trial import main; main()"


@dataclass(frozen=True)
class Settings:
    """How the large model will be run.

    Attributes:
        layer_ids: The layers to capture.
        max_model_len: As given to the generator, as are the next two.
        tensor_parallel_size: How many workers.
        gpu_memory_utilization: What vLLM may use of a GPU.
        gpus: How many there are here; without one, vLLM runs on the CPU.
        limit: Seconds after which the attempts count as stuck.
    """

    layer_ids: tuple[int, ...]
    max_model_len: int
    tensor_parallel_size: int
    gpu_memory_utilization: float
    gpus: int
    limit: float

    @property
    def ranks(self) -> int:
        """How many workers this machine can run; what can be split among all can be split among so many."""
        wanted = self.tensor_parallel_size
        return max(ranks for ranks in range(1, min(wanted, max(self.gpus, 1)) + 1) if wanted % ranks == 0)


@dataclass(frozen=True)
class Attempt:
    """How a small model came out.

    Attributes:
        checks: What was tried, in order.
        log: What vLLM and its workers wrote.
        exit_code: That of the process; None if it took too long.
        left_out: What of the large model was not tried, and why.
    """

    checks: tuple[Check, ...]
    log: str
    exit_code: int | None
    left_out: str = ""

    @property
    def held(self) -> bool:
        return self.exit_code == 0 and bool(self.checks) and all(check.held for check in self.checks)

    @property
    def lacks_a_kernel(self) -> bool:
        """Whether it ended where a worker was to load the model, or sooner than it could say."""
        last = self.checks[-1] if self.checks else None
        return self.exit_code is None or last is None or (last.name == "start" and not last.held and "orker" in last.words)

    @property
    def refuses_the_quantization(self) -> bool:
        return not self.held and "quantization" in self.words().lower()

    def words(self) -> str:
        """What went wrong: the checks that failed, or, where a worker did not start, the last error in the log."""
        failed = [f"{check.name}: {check.words}" for check in self.checks if not check.held]
        if not failed:
            return "it took too long" if self.exit_code is None else f"its process ended with {self.exit_code}"
        if WORKER_FAILED in failed[0] and (errors := re.findall(r"\b\w*(?:Error|Exception): .*", self.log)):
            return f"start: {next((error for error in reversed(errors) if WORKER_FAILED not in error), failed[0])}"
        return "; ".join(failed)

    def cures(self) -> list[Adapter]:
        """The adapters that cure what went wrong."""
        return [] if self.held else cures(self.words())


def attempt(model: Path, config: Config, folder: Path, settings: Settings) -> Attempt:
    """Try a small model, and where that cannot even start here, one that asks less of this machine's kernels.

    Args:
        model: The checkpoint.
        config: Its config.
        folder: An empty folder.
        settings: How the large model will be run.

    Returns:
        The first attempt that started, or whose error one of the adapters is there for; otherwise the first.
    """
    deadline = time.monotonic() + settings.limit
    attempts: list[Attempt] = []
    for variant in _variants(config, settings):
        attempts.append(_attempt(model, variant, folder / str(len(attempts)), settings, deadline - time.monotonic()))
        if attempts[-1].cures() or not (attempts[-1].lacks_a_kernel or attempts[-1].refuses_the_quantization):
            return attempts[-1]
    return attempts[0]


@dataclass(frozen=True)
class _Variant:
    large: Config
    small: Config
    left_out: str = ""


def _variants(config: Config, settings: Settings) -> Iterator[_Variant]:
    yield _Variant(config, shrink(config, settings.ranks))
    if not settings.gpus and "quantization_config" in json.dumps(config):
        plain = _unquantized(config)
        yield _Variant(plain, shrink(plain, settings.ranks), "the quantised weights, for want of a kernel on this CPU")
    if settings.gpus:
        yield _Variant(config, shrink(config, settings.ranks, narrow=False))


def _unquantized(config: Config) -> Config:
    plain = {name: _unquantized(entry) if isinstance(entry, dict) else entry for name, entry in config.items()}
    plain.pop("quantization_config", None)
    return plain


def _attempt(model: Path, variant: _Variant, folder: Path, settings: Settings, limit: float) -> Attempt:
    # transformers keeps remote code by the name of its folder.
    name = model.resolve().name
    _write(model, folder / name, variant.small)
    _write(model, folder / "large" / name, variant.large)
    options = Options(
        model=str(folder / name),
        large_model=str(folder / "large" / name),
        max_model_len=settings.max_model_len,
        tensor_parallel_size=settings.ranks,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        **_of_the_small_model(decoder_config(variant.small), settings.layer_ids),
    )
    (folder / "options.json").write_text(json.dumps(asdict(options)))
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"} | ({} if settings.gpus else ON_A_CPU)
    if len(str(folder)) < LONGEST_SOCKET_FOLDER:
        environment["VLLM_RPC_BASE_PATH"] = str(folder)
    log, checks = folder / "log", folder / "checks.json"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder / "options.json"), str(checks)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**environment, **os.environ},
            start_new_session=True,
        )
        exit_code = _wait(process, limit)
    found = json.loads(checks.read_text()) if checks.exists() else []
    return Attempt(tuple(Check(**check) for check in found), log.read_text(errors="replace"), exit_code, variant.left_out)


def _of_the_small_model(decoder: Mapping[str, Any], layer_ids: tuple[int, ...]) -> dict[str, Any]:
    layers = number(decoder, LAYERS) or 1
    slides = set(decoder.get("layer_types") or ["sliding_attention"]) == {"sliding_attention"}
    return {
        "layer_ids": tuple(sorted({layer % layers for layer in layer_ids} | {0, layers - 1})),
        "vocabulary_size": number(decoder, VOCABULARY) or 0,
        "window": (number(decoder, WINDOW) or 0) if slides and decoder.get("use_sliding_window") is not False else 0,
    }


def _wait(process: subprocess.Popen[bytes], limit: float) -> int | None:
    """The exit code; None if it took longer than `limit`. However this is left, no process of the attempt is."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the processes of an attempt: with grace, so that Python's resource tracker, the last, removes shared memory."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
            deadline = time.monotonic() + GRACE
            while time.monotonic() < deadline:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.05)
    process.wait()


def _write(model: Path, path: Path, config: Config) -> None:
    """Make a checkpoint at `path` of `config` and of everything that `model` has but weights."""
    path.mkdir(parents=True)
    for entry in model.resolve().iterdir():
        if entry.is_file() and entry.name != "config.json" and not entry.name.endswith(WEIGHTS):
            (path / entry.name).symlink_to(entry.resolve())
    (path / "config.json").write_text(json.dumps(config, indent=1))
