"""Runs the commands and the Python that the README and docs/ show, with a tiny checkpoint in place of a large one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from tests.commands_shown import COMMANDS, GIVEN, ROOT, STAND_INS, Invocation, snippets

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

# What the tests in tests/engine set, and why: see the conftest.py there.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_MLA_DISABLE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
}

# speculators' own script is not part of its wheel. This does the same with the same arguments, and knows nothing of us either.
OFFLINE_SCRIPT = """
    import argparse
    from pathlib import Path
    import torch
    from speculators.data_generation.preprocessing import load_and_preprocess_dataset
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    def main():
        parser = argparse.ArgumentParser()
        for name in ("--target-model-path", "--train-data-path", "--output-dir"):
            parser.add_argument(name, required=True)
        for name in ("--max-samples", "--tensor-parallel-size"):
            parser.add_argument(name, type=int)
        parser.add_argument("--layer-ids", type=int, nargs="+")
        options = parser.parse_args()
        dataset, _ = load_and_preprocess_dataset(
            options.target_model_path, options.train_data_path, 1024, build_dataset_num_proc=1, max_samples=options.max_samples
        )
        generator = VllmHiddenStatesGenerator(
            options.target_model_path, options.layer_ids, tensor_parallel_size=options.tensor_parallel_size
        )
        output = Path(options.output_dir)
        output.mkdir(exist_ok=True)
        for start in range(0, len(dataset), 4):
            batch = dataset[start : start + 4]
            for offset, result in enumerate(generator.generate(batch["input_ids"])):
                result["loss_mask"] = batch["loss_mask"][offset][: len(result["input_ids"])]
                torch.save(result, output / f"data_{start + offset}.pt")

    if __name__ == "__main__":
        main()
"""

Run = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where everything is run, with what a user has there."""
    folder = tmp_path_factory.mktemp("shown")
    (folder / "script.py").write_text(textwrap.dedent(OFFLINE_SCRIPT))
    shutil.copy(ROOT / "examples" / "conversations.jsonl", folder)
    return folder


@pytest.fixture(scope="module")
def things(folder: Path) -> dict[str, Path]:
    """What stands in for the placeholders of `Invocation`."""
    from tiny_checkpoints import make

    from speculators_compat.detection import detect

    name = "kimi_k25" if detect("vllm").within(">=0.16") else "llama"
    checkpoints = Path(os.environ.get("SPECULATORS_COMPAT_TEST_CHECKPOINTS") or folder / "checkpoints")
    return {
        "model": make(name, checkpoints / name),
        "script": folder / "script.py",
        "conversations": folder / "conversations.jsonl",
        "states": folder / "offline",  # apart from what the Python that is shown writes
    }


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    """Runs a command as a shell would, with the programs of this Python's environment, once."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPECULATORS_COMPAT_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    @cache
    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env={**ENVIRONMENT, **kept, "PATH": path},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return run


def invocations() -> list[str]:
    return [command for command, how in COMMANDS.items() if isinstance(how, Invocation)]


@pytest.mark.parametrize("shown", invocations(), ids=lambda shown: shown[:80])
def test_a_command_that_is_shown_runs(run: Run, things: dict[str, Path], shown: str) -> None:
    how = COMMANDS[shown]
    assert isinstance(how, Invocation)
    for command in (*how.after, shown):
        step = COMMANDS[command]
        assert isinstance(step, Invocation)
        process = run(step.command.format(**things))
        assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-4000:]


@pytest.mark.parametrize("source", [pytest.param(source, id=name) for source, name in snippets()])
def test_python_that_is_shown_runs(run: Run, folder: Path, things: dict[str, Path], source: str) -> None:
    """Each in a script of its own, unguarded where it is shown unguarded."""
    for shown, stand_in in STAND_INS.items():
        source = source.replace(shown, stand_in.format(**things))
    script = folder / f"snippet_{abs(hash(source))}.py"
    script.write_text(GIVEN + source)
    process = run(f"python {script}")
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-4000:]
