"""`speculators-compat preflight` on real vLLM: what works is let through, and each contract that is switched off is caught."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tiny_checkpoints import make

from speculators_compat.detection import detect
from speculators_compat.preflight.attempt import WEIGHTS
from tests.engine.support import why_not
from tests.engine.test_switches import CASES, LINES, Case, decided

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


def preflight(model: Path, *arguments: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the answer."""
    process = subprocess.run(
        [sys.executable, "-m", "speculators_compat", "preflight", str(model), "--json", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert process.stdout, process.stderr
    return process.returncode, json.loads(process.stdout)


def config_only(checkpoints: Path, name: str, folder: Path) -> Path:
    """A checkpoint as large ones are, without its weights."""
    if reason := why_not(name):
        pytest.skip(reason)
    folder = folder / name
    folder.mkdir()
    for entry in make(name, checkpoints / name).iterdir():
        if not entry.name.endswith(WEIGHTS):
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "gpt_oss", "kimi_k25"])
def test_what_works_is_let_through_in_a_minute(checkpoints: Path, tmp_path: Path, name: str) -> None:
    model = config_only(checkpoints, name, tmp_path)
    started = time.perf_counter()
    code, answer = preflight(model, "--log", str(tmp_path / "log"))
    assert code == 0, (answer, (tmp_path / "log").read_text()[-5000:])
    assert time.perf_counter() - started < 60
    assert [check["name"] for check in answer["checks"]] == [
        *("config", "start", "complete", "context", "batching", "shared prefixes", "layers", "sliding window"),
        *("bad input", "failed call", "workers"),
    ]
    assert all(check["held"] for check in answer["checks"])


def test_what_one_cpu_cannot_try_is_said(checkpoints: Path, tmp_path: Path) -> None:
    code, answer = preflight(config_only(checkpoints, "llama", tmp_path), "--tensor-parallel-size", "2")
    assert code == 0
    assert "tensor parallel size 2: tried with 1" in answer["not_tried"]
    assert answer["checks"][0]["words"] == "vLLM takes the large model's, with max_model_len 2048"


def test_what_vllm_refuses_of_the_large_model_is_said_before_it_is_loaded(checkpoints: Path, tmp_path: Path) -> None:
    model = config_only(checkpoints, "llama", tmp_path)
    code, answer = preflight(model, "--max-model-len", "100000")
    assert code == 1
    assert "is greater than the derived max_model_len" in answer["problems"][0]
    code, answer = preflight(model, "--tensor-parallel-size", "3")
    assert code == 1
    assert "4 attention heads cannot be split among 3 ranks" in answer["problems"][0]


def cases() -> list[Case]:
    """One for each adapter and model that is switched off and missed in tests/engine/test_switches.py."""
    return list({(case.adapter, case.model): case for case in CASES if any(LINES[line] for line in case.lines)}.values())


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.adapter}-{case.model}")
def test_a_contract_that_is_switched_off_is_caught(checkpoints: Path, tmp_path: Path, case: Case) -> None:
    if decided()[case.adapter] == "not needed":
        pytest.skip(f"this contract is intact with {detect('vllm')}")
    if case.adapter == "tokenizer_remote_code" and not detect("transformers").within("<5"):
        pytest.skip("transformers 5 reads the tiny Kimi's tokenizer.json without its remote code")
    environment = {"SPECULATORS_COMPAT_DISABLE": ",".join([case.adapter, *case.also_off])}
    if case.plugins is not None:
        environment["VLLM_PLUGINS"] = case.plugins
    code, answer = preflight(config_only(checkpoints, case.model, tmp_path), **environment)
    assert code == 1, answer
    assert answer["problems"]
    assert not all(check["held"] for check in answer["checks"])


def edit_config(model: Path, **changes: Any) -> None:
    path = model / "config.json"
    config = json.loads(path.read_text()) | changes
    path.unlink()
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("every_layer_says_so", [False, True])
def test_a_sliding_window_that_does_not_slide_is_caught(checkpoints: Path, tmp_path: Path, every_layer_says_so: bool) -> None:
    model = config_only(checkpoints, "llama", tmp_path)
    kinds = {"layer_types": ["sliding_attention"] * 5} if every_layer_says_so else {}
    edit_config(model, architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=4096, **kinds)
    code, answer = preflight(model)
    assert code == 0, answer
    assert {"name": "sliding window", "held": True, "words": "tokens 64 positions back change nothing"} in answer["checks"]
    code, answer = preflight(model, SPECULATORS_COMPAT_DISABLE="sliding_window")
    # Layers that are told so one by one slide without the adapter.
    assert code == (0 if every_layer_says_so else 1)
    assert every_layer_says_so or "attention does not slide" in answer["problems"][0]


@pytest.mark.skipif(detect("vllm").within(">=0.29") is True, reason="vLLM 0.29 dropped GritLM")
def test_a_model_that_vllm_would_rather_embed_with_is_caught(checkpoints: Path, tmp_path: Path) -> None:
    model = config_only(checkpoints, "llama", tmp_path)
    edit_config(model, architectures=["GritLM"], model_type="mistral")
    assert preflight(model)[0] == 0
    code, answer = preflight(model, SPECULATORS_COMPAT_DISABLE="generate_runner")
    assert code == 1, answer


def test_a_model_that_vllm_does_not_have_is_said_to_be_so(checkpoints: Path, tmp_path: Path) -> None:
    model = config_only(checkpoints, "llama", tmp_path)
    edit_config(model, architectures=["NoSuchForCausalLM"])
    code, answer = preflight(model)
    assert code == 1
    assert "NoSuchForCausalLM" in answer["problems"][0]


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder for temporary files with a short name: vLLM has sockets there, whose paths have 107 characters at most."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name
)
def test_nothing_is_left_when_it_is_ended(checkpoints: Path, tmp_path: Path, scratch: Path, number: signal.Signals) -> None:
    model = config_only(checkpoints, "llama", tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "speculators_compat", "preflight", str(model)],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # Until vLLM's worker runs, which has a message queue in shared memory by then.
    deadline = time.monotonic() + 60
    while len(started_in(scratch)) < 4 or not (shared := mapped_by(started_in(scratch))):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(number)
    process.wait(20)
    deadline = time.monotonic() + 20
    while left := [*started_in(scratch), *filter(os.path.exists, shared)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
    if number != signal.SIGKILL:
        assert not list(scratch.glob("preflight-*"))


def mapped_by(processes: list[str]) -> set[str]:
    """Files in /dev/shm that processes have mapped."""
    found: set[str] = set()
    for process in processes:
        with suppress(OSError):
            found.update(re.findall(r"/dev/shm/\S+", Path(f"/proc/{process}/maps").read_text()))
    return found


def started_in(scratch: Path) -> list[str]:
    """Processes that have this folder for temporary files."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"TMPDIR={scratch}\0".encode() in (process / "environ").read_bytes():
                found.append(process.name)
    return found
