"""`speculators-compat verify` on folders of made-up states, in which one thing at a time is broken as a real bug breaks it."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from speculators_compat.cli import main, verify
from speculators_compat.verification import folder
from speculators_compat.verification.record import Fault, Journal, Record, Stamp, load, positions

torch = pytest.importorskip("torch")

from speculators_compat.verification import sample  # noqa: E402 - needs torch

LAYERS, HIDDEN, FILES = 4, 32, 32
SYSTEM, HEADER, WORDS = [1, *range(2, 42)], 99, range(50, 74)
EMBEDDING = torch.randn(100, HIDDEN, generator=torch.Generator().manual_seed(0))
Sample = dict[str, Any]
Folder = dict[str, Sample]


def states_of(ids: list[int]) -> list[torch.Tensor]:
    """What a causal model makes of tokens: each row has the token's embedding, and something of all tokens up to it."""
    running, rows = blake2b(), []
    for token in ids:
        running.update(token.to_bytes(4, "little"))
        rows.append(_row(token, int.from_bytes(running.digest()[:7], "little")))
    states = torch.stack(rows, dim=1)
    states[:, 0] *= 20  # The attention sink.
    return list(states)


@cache
def _row(token: int, prefix: int) -> torch.Tensor:
    context = torch.randn(LAYERS, HIDDEN, generator=torch.Generator().manual_seed(prefix))
    return EMBEDDING[token] + 0.8 * context


def make_sample(ids: list[int], seed: int = 0) -> Sample:
    """A sample in bfloat16, with the noise of a batch of its own, as large as docs/correctness.md has it."""
    generator = torch.Generator().manual_seed(seed)
    states = []
    for layer in states_of(ids):
        noise = torch.randn(layer.shape, generator=generator)
        noise *= 0.04 * layer.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True)
        states.append((layer + noise).bfloat16())
    mask = torch.zeros(len(ids), dtype=torch.long)
    if HEADER in ids:
        mask[ids.index(HEADER) + 1 :] = 1
    return {"input_ids": torch.tensor(ids), "hidden_states": states, "loss_mask": mask}


def conversation(words: random.Random, length: int | None = None) -> list[int]:
    user, assistant = words.choices(WORDS, k=words.randint(5, 25)), words.choices(WORDS, k=words.randint(100, 140))
    return [*SYSTEM, *user, HEADER, *assistant][:length]


def good_folder(seed: int = 0, files: int = FILES) -> Folder:
    """Conversations with one system prompt; 4 and 5 are of one length, as those that are cut to fit are."""
    words = random.Random(seed)
    return {f"data_{i}.pt": make_sample(conversation(words, 140 if i in (4, 5) else None), i) for i in range(files)}


def write(directory: Path, samples: dict[str, Any]) -> Path:
    for name, content in samples.items():
        (directory / name).parent.mkdir(exist_ok=True)
        torch.save(content, directory / name)
    return directory


def run(directory: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["verify", str(directory), "--jobs", "1", *options])


def faults_in(directory: Path, *options: str) -> dict[str, list[str]]:
    """The kinds of faults by file; the exit code has to agree."""
    result = run(directory, "--json", *options)
    bad = json.loads(result.stdout)["bad"]
    assert result.exit_code == bool(bad)
    return {name: [fault["kind"] for fault in faults] for name, faults in bad.items()}


def ids_of(content: Sample) -> list[int]:
    ids: list[int] = content["input_ids"].tolist()
    return ids


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_wrong_with_a_good_folder(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    directory = write(tmp_path_factory.mktemp("good"), good_folder(seed))
    assert faults_in(directory) == {}
    assert "0 bad, 32 good files" in run(directory).stdout


# Each breaks file 5 of a good folder.


def rows_are_cached(samples: Folder, content: Sample) -> None:
    """Prefix caching: two blocks of the system prompt never pass through the layers."""
    content["hidden_states"] = [layer[32:].clone() for layer in content["hidden_states"]]


def a_layer_is_short(samples: Folder, content: Sample) -> None:
    content["hidden_states"][2] = content["hidden_states"][2][:-1].clone()


def mask_is_of_a_shorter_prompt(samples: Folder, content: Sample) -> None:
    content["loss_mask"] = content["loss_mask"][:-7].clone()


def mask_is_of_a_longer_prompt(samples: Folder, content: Sample) -> None:
    """speculators' script cuts it to fit."""
    tokens = len(content["input_ids"])
    content["loss_mask"] = torch.cat([torch.zeros(70, dtype=torch.long), torch.ones(100, dtype=torch.long)])[:tokens]


def chunks_lack_context(samples: Folder, content: Sample) -> None:
    """vLLM 0.11 on a CPU: attention forgets what is before a cut."""
    ids = ids_of(content)
    before, after = make_sample(ids[:16]), make_sample(ids[16:])
    content["hidden_states"] = list(map(torch.cat, zip(before["hidden_states"], after["hidden_states"], strict=True)))


def rows_begin_in_another_request(samples: Folder, content: Sample) -> None:
    """A batch that the worker had sorted otherwise: three rows of the request before, and the last three are missing."""
    before = samples["data_9.pt"]["hidden_states"]
    content["hidden_states"] = [
        torch.cat([other[-3:], layer[:-3]]) for other, layer in zip(before, content["hidden_states"], strict=True)
    ]


def rows_are_shifted_behind_the_prefix(samples: Folder, content: Sample) -> None:
    """Where no other file has the same tokens: only the tokens themselves can tell."""
    content["hidden_states"] = [torch.cat([layer[:50], layer[49:-1].roll(1, 0)]) for layer in content["hidden_states"]]
    for layer in content["hidden_states"]:
        layer[50:] += 0.02 * torch.randn(layer[50:].shape, generator=torch.Generator().manual_seed(0))


def states_are_another_files(samples: Folder, content: Sample) -> None:
    content["hidden_states"] = samples["data_4.pt"]["hidden_states"]


def first_row_is_another_files(samples: Folder, content: Sample) -> None:
    ids = [2, *ids_of(content)[1:]]
    first = [layer[:1] for layer in samples["data_4.pt"]["hidden_states"]]
    samples["data_6.pt"]["hidden_states"] = [
        torch.cat([row, layer[1:]]) for row, layer in zip(first, samples["data_6.pt"]["hidden_states"], strict=True)
    ]
    content.update(make_sample(ids))
    content["hidden_states"] = [torch.cat([row, layer[1:]]) for row, layer in zip(first, content["hidden_states"], strict=True)]


def chunk_is_returned_twice(samples: Folder, content: Sample) -> None:
    for layer in content["hidden_states"]:
        layer[64:96] = layer[32:64]


def rows_pass_for_layers(samples: Folder, content: Sample) -> None:
    """The reply lost the list around it, and the first layer's rows are iterated over."""
    content["hidden_states"] = [row.clone() for row in content["hidden_states"][0]]


def a_layer_passes_for_all(samples: Folder, content: Sample) -> None:
    content["hidden_states"] = [content["hidden_states"][0].clone() for _ in range(LAYERS)]


def a_layer_is_missing(samples: Folder, content: Sample) -> None:
    del content["hidden_states"][1]


def a_value_is_nan(samples: Folder, content: Sample) -> None:
    content["hidden_states"][3][17, 5] = float("nan")


def rows_are_never_written(samples: Folder, content: Sample) -> None:
    for layer in content["hidden_states"]:
        layer[100:110] = 0


def precision_is_another(samples: Folder, content: Sample) -> None:
    content["hidden_states"] = [layer.half() for layer in content["hidden_states"]]


def model_is_another(samples: Folder, content: Sample) -> None:
    content["hidden_states"] = [layer[:, :24].clone() for layer in content["hidden_states"]]


def mask_is_missing(samples: Folder, content: Sample) -> None:
    content["loss_mask"] = None


def states_are_missing(samples: Folder, content: Sample) -> None:
    del content["hidden_states"]


def tokens_are_a_list(samples: Folder, content: Sample) -> None:
    content["input_ids"] = ids_of(content)


def layers_are_stacked(samples: Folder, content: Sample) -> None:
    content["hidden_states"] = torch.stack(content["hidden_states"])


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        (rows_are_cached, "lengths"),
        (a_layer_is_short, "lengths"),
        (mask_is_of_a_shorter_prompt, "lengths"),
        (mask_is_of_a_longer_prompt, "wrong mask"),
        (chunks_lack_context, "differing states"),
        (rows_begin_in_another_request, "wrong tokens"),
        (rows_are_shifted_behind_the_prefix, "wrong tokens"),
        (states_are_another_files, "wrong tokens"),
        (first_row_is_another_files, "same states"),
        (chunk_is_returned_twice, "repeated rows"),
        (rows_pass_for_layers, "format"),
        (a_layer_passes_for_all, "repeated layers"),
        (a_layer_is_missing, "format"),
        (a_value_is_nan, "not finite"),
        (rows_are_never_written, "zero rows"),
        (precision_is_another, "format"),
        (model_is_another, "format"),
        (mask_is_missing, "format"),
        (states_are_missing, "format"),
        (tokens_are_a_list, "format"),
        (layers_are_stacked, "format"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_exactly_the_broken_file_is_named(tmp_path: Path, broken: Callable[[Folder, Sample], None], kind: str) -> None:
    samples = good_folder()
    broken(samples, samples["data_5.pt"])
    found = faults_in(write(tmp_path, samples))
    assert list(found) == ["data_5.pt"]
    assert found["data_5.pt"][0] == kind


def test_results_out_of_order(tmp_path: Path) -> None:
    """speculators 0.4 sorts request ids as text, and its script gives each result the mask of another, cut to fit."""
    samples = good_folder(files=60)
    right = list(samples.values())[:12]
    for index, request in enumerate(sorted(f"req_0_{i}" for i in range(12))):
        result = dict(right[int(request.rpartition("_")[2])])
        result["loss_mask"] = right[index]["loss_mask"][: len(result["input_ids"])].clone()
        samples[f"data_{index}.pt"] = result
    found = faults_in(write(tmp_path, samples))
    assert set(found) == {f"data_{i}.pt" for i in range(2, 12)}
    assert {kind for kinds in found.values() for kind in kinds} == {"lengths", "wrong mask"}


def test_two_prompts_of_one_length_have_each_others_states(tmp_path: Path) -> None:
    samples = good_folder()
    one, other = samples["data_4.pt"], samples["data_5.pt"]
    one["hidden_states"], other["hidden_states"] = other["hidden_states"], one["hidden_states"]
    assert faults_in(write(tmp_path, samples)) == {"data_4.pt": ["wrong tokens"], "data_5.pt": ["wrong tokens"]}


def test_states_of_another_prompt_are_named_with_their_owner(tmp_path: Path) -> None:
    samples = good_folder()
    states_are_another_files(samples, samples["data_5.pt"])
    faults = json.loads(run(write(tmp_path, samples), "--json").stdout)["bad"]["data_5.pt"]
    assert any("equal those of data_4.pt, whose tokens differ" in fault["message"] for fault in faults)


def test_where_no_majority_is_right_both_are_named(tmp_path: Path) -> None:
    samples = good_folder()
    ids = conversation(random.Random(9))
    samples |= {"data_40.pt": make_sample(ids, 40), "data_41.pt": make_sample(ids, 41)}
    samples["data_41.pt"]["hidden_states"] = [layer.clone() for layer in samples["data_41.pt"]["hidden_states"]]
    samples["data_41.pt"]["hidden_states"][2][127] = samples["data_0.pt"]["hidden_states"][2][100]
    bad = json.loads(run(write(tmp_path, samples), "--json").stdout)["bad"]
    assert set(bad) == {"data_40.pt", "data_41.pt"}
    assert "here or in data_41.pt are wrong" in bad["data_40.pt"][0]["message"]


def test_noise_beyond_the_tolerance_is_reported_and_the_tolerance_can_be_raised(tmp_path: Path) -> None:
    samples = good_folder()
    for layer in samples["data_5.pt"]["hidden_states"]:
        noise = torch.randn(layer.shape, generator=torch.Generator().manual_seed(0))
        layer += (0.5 * layer.norm(dim=1, keepdim=True) * noise / noise.norm(dim=1, keepdim=True)).bfloat16()
    directory = write(tmp_path, samples)
    assert faults_in(directory) == {"data_5.pt": ["differing states"]}
    assert faults_in(directory, "--tolerance", "0.9") == {}


def test_equal_rows_of_a_repeated_token_are_right(tmp_path: Path) -> None:
    """Attention over equal values leaves them as they are."""
    row = torch.randn(LAYERS, 1, HIDDEN, generator=torch.Generator().manual_seed(0)).bfloat16()
    content = {"input_ids": torch.full((40,), 7), "hidden_states": list(row.repeat(1, 40, 1)), "loss_mask": None}
    assert faults_in(write(tmp_path, {"data_0.pt": content})) == {}


def test_unusual_norms_are_a_hint(tmp_path: Path) -> None:
    samples = good_folder()
    samples["data_5.pt"]["hidden_states"] = [3 * layer for layer in samples["data_5.pt"]["hidden_states"]]
    directory = write(tmp_path, samples)
    assert faults_in(directory) == {}
    assert list(json.loads(run(directory, "--json").stdout)["unusual_norms"]) == ["data_5.pt"]
    assert "hint" in run(directory).stdout


def test_truncated_and_empty_files_and_others(tmp_path: Path) -> None:
    directory = write(tmp_path, good_folder() | {"token_freq.pt": {5: 1}, "sub/d2t.pt": torch.arange(3), "data_32.pt": [1]})
    for name, size in (("data_3.pt", 5000), ("data_10.pt", 0)):
        os.truncate(directory / name, size)
    (directory / "data_33.pt").symlink_to("nowhere")
    found = faults_in(directory)
    assert found == {name: ["unreadable"] for name in ("data_3.pt", "data_10.pt", "data_33.pt")} | {"data_32.pt": ["format"]}
    assert json.loads(run(directory, "--json").stdout)["skipped"] == ["sub/d2t.pt", "token_freq.pt"]


def report_on(directory: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run(directory, "--json").stdout)
    return report


def in_chat(words: random.Random, reply: list[int]) -> list[int]:
    """As ChatML has it: each header is a start, a role and a newline; the newline of the last is up to `reply`."""
    start, user, assistant, newline = 90, 91, 92, HEADER
    return [*SYSTEM, start, user, newline, *words.choices(WORDS, k=words.randint(5, 25)), start, assistant, *reply]


def masked_from(ids: list[int], start: int, seed: int) -> Sample:
    return make_sample(ids, seed) | {"loss_mask": (torch.arange(len(ids)) >= start).long()}


def test_a_reply_that_merges_with_its_header_has_a_right_mask(tmp_path: Path) -> None:
    """A reply that begins with newlines: Qwen's tokenizer makes one token, 93, of them and of the header's."""
    words = random.Random(0)
    samples = {}
    for index in range(60):
        newline = [93] if index in (7, 30) else [HEADER]
        reply = [*newline, *words.choices(WORDS, k=words.randint(100, 140))]
        ids = in_chat(words, reply)
        start = len(ids) - len(reply)
        samples[f"data_{index}.pt"] = masked_from(ids, start if index in (7, 30) else start + 1, index)
    samples["data_9.pt"]["loss_mask"] = samples["data_9.pt"]["loss_mask"].roll(5)
    assert faults_in(write(tmp_path, samples)) == {"data_9.pt": ["wrong mask"]}


def test_a_mask_cannot_turn_on_after_a_token_that_is_not_there(tmp_path: Path) -> None:
    samples = good_folder(files=60)
    for index in (7, 30):
        ids = [98 if token == HEADER else token for token in ids_of(samples[f"data_{index}.pt"])]
        samples[f"data_{index}.pt"] = masked_from(ids, ids.index(98) + 1, index)
    directory = write(tmp_path, samples)
    assert faults_in(directory) == {}
    why = "without the tokens after which loss masks usually turn on"
    assert report_on(directory)["unjudged"] == [{"kind": "wrong mask", "why": why, "files": 2}]


def test_what_could_not_be_judged_is_said(tmp_path: Path) -> None:
    """Two short prompts of one length with each other's states: nothing shows it."""
    words = random.Random(0)
    ids = [[*words.choices(WORDS, k=30), HEADER, *words.choices(WORDS, k=30)] for _ in range(20)]
    samples = {f"data_{index}.pt": make_sample(tokens, index) for index, tokens in enumerate(ids)}
    one, other = samples["data_4.pt"], samples["data_5.pt"]
    one["hidden_states"], other["hidden_states"] = other["hidden_states"], one["hidden_states"]
    directory = write(tmp_path, samples)
    assert report_on(directory)["unjudged"] == [{"kind": "wrong tokens", "why": "too few repeated tokens", "files": 20}]
    assert "not judged for wrong tokens: 20 files (too few repeated tokens)" in run(directory).stdout


def test_a_few_files_are_not_compared_and_that_is_said(tmp_path: Path) -> None:
    unjudged = report_on(write(tmp_path, good_folder(files=3)))["unjudged"]
    assert {(entry["kind"], entry["files"]) for entry in unjudged} == {("wrong tokens", 3), ("wrong mask", 3)}


def test_odd_files_do_not_end_the_run(tmp_path: Path) -> None:
    samples: dict[str, Any] = good_folder(files=4)
    samples |= {"1²2.pt": samples.pop("data_3.pt"), "data_9.pt": dict(samples["data_0.pt"])}
    narrow, sparse = samples["data_0.pt"], samples["data_9.pt"]
    narrow["hidden_states"] = [layer.to(torch.float8_e4m3fn) for layer in narrow["hidden_states"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sparse["hidden_states"] = [layer.to_sparse() for layer in sparse["hidden_states"]]
    directory = write(tmp_path, samples)
    assert faults_in(directory) == {"data_9.pt": ["unreadable"], "data_0.pt": ["format"]}
    assert "float8_e4m3fn" in run(directory).stdout


class Model:
    """Something that only pickle can save."""


def test_files_of_pickled_objects_are_skipped(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "scripted.pt")
    others = {"model.pt": {"input_ids": Model()}, "checkpoint.pt": {"args": Namespace()}, "data_2.pt": Model()}
    directory = write(tmp_path, good_folder(files=2) | others)
    report = report_on(directory)
    assert report["skipped"] == ["checkpoint.pt", "model.pt", "scripted.pt"]
    [fault] = report["bad"].pop("data_2.pt")
    assert fault["kind"] == "unreadable"
    assert fault["message"].startswith("holds pickled objects, which are not loaded: ")
    assert fault["message"].endswith("test_verify.Model")
    assert report["bad"] == {}


def test_files_in_torchs_old_format_are_read(tmp_path: Path) -> None:
    samples = good_folder(files=3)
    directory = write(tmp_path, samples)
    a_value_is_nan(samples, samples["data_2.pt"])
    for name in ("data_1.pt", "data_2.pt"):
        torch.save(samples[name], directory / name, _use_new_zipfile_serialization=False)
    assert faults_in(directory) == {"data_2.pt": ["not finite"]}


def test_no_escape_codes_in_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("\x1b[1mdamaged\x1b[0m\nmore")

    monkeypatch.setattr(torch, "load", load)
    faults = report_on(write(tmp_path, good_folder(files=1)))["bad"]["data_0.pt"]
    assert faults == [{"kind": "unreadable", "message": "RuntimeError: damaged"}]


def test_links_to_folders_are_counted(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere", good_folder(files=2))
    directory = tmp_path / "states"
    directory.mkdir()
    for name in ("10", "2"):
        (directory / name).symlink_to(tmp_path / "elsewhere")
    result = run(directory)
    assert (result.exit_code, "links to folders are not followed: 2, 10" in result.stderr) == (2, True)
    write(directory, good_folder(files=2))
    assert "Links to folders, not followed: 2 (2, 10)" in run(directory).stdout
    report = report_on(directory)
    assert (report["files"], report["linked_folders"]) == (2, ["2", "10"])


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that are read."""
    names: list[str] = []
    examine = sample.examine

    def noted(directory: Path, stamp: Stamp) -> Record:
        names.append(stamp.name)
        return examine(directory, stamp)

    monkeypatch.setattr(sample, "examine", noted)
    return names


def test_only_new_and_changed_files_are_read_again(tmp_path: Path, reads: list[str]) -> None:
    samples = good_folder(files=12)
    directory = write(tmp_path, samples)
    assert faults_in(directory) == {}
    assert len(reads) == 12
    a_value_is_nan(samples, samples["data_5.pt"])
    write(directory, {"data_5.pt": samples["data_5.pt"], "data_12.pt": samples["data_0.pt"]})
    (directory / "data_7.pt").unlink()
    reads.clear()
    assert faults_in(directory) == {"data_5.pt": ["not finite"]}
    assert reads == ["data_5.pt", "data_12.pt"]
    reads.clear()
    assert faults_in(directory) == {"data_5.pt": ["not finite"]}
    assert reads == []


def test_a_file_that_could_not_be_read_is_tried_again(tmp_path: Path, reads: list[str]) -> None:
    directory = write(tmp_path, good_folder(files=2))
    os.truncate(directory / "data_1.pt", 100)
    assert faults_in(directory) == faults_in(directory) == {"data_1.pt": ["unreadable"]}
    assert reads == ["data_0.pt", "data_1.pt", "data_1.pt"]


@pytest.mark.parametrize("lost", [1, 2, 30])
def test_a_torn_last_line_costs_one_file(tmp_path: Path, reads: list[str], lost: int) -> None:
    directory, results = write(tmp_path, good_folder(files=4)), tmp_path / "results"
    assert faults_in(directory, "--record", str(results)) == {}
    os.truncate(results, results.stat().st_size - lost)
    reads.clear()
    assert faults_in(directory, "--record", str(results)) == faults_in(directory, "--record", str(results)) == {}
    # Without the last end of line, the line is still whole.
    assert reads == ([] if lost == 1 else ["data_3.pt"])
    assert not (directory / ".verified.jsonl").exists()


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files would not be missed."""
    directory = write(tmp_path, good_folder(files=2))
    (directory / "more").mkdir()
    scan = os.scandir

    def refused(path: Any) -> Any:
        if Path(path).name == "more":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)  # root may read anything
    result = CliRunner().invoke(main, ["verify", str(directory)])
    assert result.exit_code == 2
    assert "Permission denied" in result.output
    assert "more" in result.output


def test_a_killed_run_is_gone_on_with(tmp_path: Path, reads: list[str]) -> None:
    samples = good_folder(files=1)
    directory = write(tmp_path, {f"data_{i}.pt": samples["data_0.pt"] for i in range(1500)})
    command = [sys.executable, "-m", "speculators_compat", "verify", str(directory), "--jobs", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while len(load(directory / ".verified.jsonl")) < 10 and process.poll() is None:
            time.sleep(0.05)
        process.kill()
    known = len(load(directory / ".verified.jsonl"))
    assert 10 <= known < 1500
    assert faults_in(directory) == {}
    assert len(reads) == 1500 - known


def in_session(session: int) -> set[int]:
    """The processes of a session that still run."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.add(int(path.parent.name))
    return found


@pytest.mark.parametrize(
    ("number", "read"), [(signal.SIGTERM, 0), (signal.SIGTERM, 1), (signal.SIGHUP, 1), (signal.SIGINT, 0), (signal.SIGKILL, 1)]
)
def test_no_process_outlives_a_run_that_is_ended(tmp_path: Path, number: signal.Signals, read: int) -> None:
    """Ended while its processes start, and while they read."""
    directory, results = write(tmp_path, {"data_0.pt": make_sample(conversation(random.Random(0)))}), tmp_path / "results"
    for index in range(1, 3000):
        (directory / f"data_{index}.pt").hardlink_to(directory / "data_0.pt")
    command = [sys.executable, "-m", "speculators_compat", "verify", str(directory), "--jobs", "2", "--record", str(results)]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        while run.poll() is None and not (len(load(results)) if read else len(in_session(run.pid)) > 1):
            time.sleep(0.01)
        run.send_signal(number)
        message = run.communicate(timeout=60)[1]
    assert run.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    assert len(load(results)) < 3000
    assert number == signal.SIGKILL or "the next run goes on from there" in message
    deadline = time.monotonic() + 10
    while in_session(run.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert in_session(run.pid) == set()


def test_an_interrupt_while_the_pool_starts_its_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = make_sample(conversation(random.Random(0)))
    directory = write(tmp_path, {f"data_{index}.pt": content for index in range(1000)})
    stamps, _ = folder.find(directory)

    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.process._ExecutorManagerThread.start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(folder.read(directory, stamps, 2))
    deadline = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not multiprocessing.active_children()


def test_a_terminal_that_hangs_up(tmp_path: Path) -> None:
    """The progress bar cannot be wiped any more."""
    content = make_sample(conversation(random.Random(0)))
    directory = write(tmp_path, {f"data_{index}.pt": content for index in range(1000)})
    terminal, end = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "speculators_compat", "verify", str(directory), "--jobs", "1"], stderr=end
    ) as run:
        os.close(end)
        while not load(directory / ".verified.jsonl") and run.poll() is None:
            time.sleep(0.01)
        os.close(terminal)
        run.send_signal(signal.SIGHUP)
    assert run.returncode == 128 + signal.SIGHUP


def test_several_processes_find_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = good_folder()
    chunks_lack_context(samples, samples["data_5.pt"])
    directory = write(tmp_path, samples)
    alone = run(directory, "--json", "--record", str(tmp_path / "alone")).stdout
    monkeypatch.setattr(folder, "FILES_PER_PROCESS", 8)
    assert run(directory, "--json", "--jobs", "2").stdout == alone


def test_the_terminal_shows_the_first_and_says_how_many_more(tmp_path: Path) -> None:
    samples = good_folder()
    for content in list(samples.values())[:25]:
        mask_is_of_a_shorter_prompt(samples, content)
    shown = run(write(tmp_path, samples)).stdout
    assert "bad data_19.pt: lengths: loss_mask has" in shown
    assert "data_20.pt" not in shown
    assert "and 5 more, which --json lists" in shown
    assert "lengths in files: 25. Usual cause: " in shown
    assert "┃" in shown


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    directory = write(tmp_path, good_folder(files=3))
    assert run(directory, "--png", str(tmp_path / "norms.png")).exit_code == 0
    assert (tmp_path / "norms.png").read_bytes().startswith(b"\x89PNG")


def test_usage_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(tmp_path)
    assert (result.exit_code, "holds no .pt file" in result.stderr) == (2, True)
    write(tmp_path, good_folder(files=1))
    assert run(tmp_path, "--record", str(tmp_path / "nowhere" / "results")).exit_code == 2
    monkeypatch.setattr(verify, "find_spec", lambda name: None)
    result = run(tmp_path, "--png", "norms.png")
    assert (result.exit_code, "pip install 'speculators-compat[plots]'" in result.stderr) == (2, True)


def test_without_torch(tmp_path: Path) -> None:
    directory = write(tmp_path, good_folder(files=1))
    script = "import sys; sys.modules['torch'] = None; from speculators_compat.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", script, "verify", str(directory)], capture_output=True, text=True)
    assert result.returncode == 2
    assert "Run this in the environment that has torch" in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_a_terminal_that_cannot_show_everything(tmp_path: Path) -> None:
    samples = good_folder(files=2)
    directory = write(
        tmp_path, samples | {"data_2.pt": samples["data_0.pt"], "sub/数据.pt": [1], "sub/\udcff.pt": {"input_ids": 1}}
    )
    command = [sys.executable, "-m", "speculators_compat", "verify", str(directory)]
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    result = subprocess.run(command, capture_output=True, encoding="latin-1", env=environment)
    assert (result.returncode, "Traceback" in result.stderr) == (1, False)
    assert "=#=" in result.stdout
    assert "bad sub/\\udcff.pt: unreadable" in result.stdout
    assert "Skipped as no samples: 1 (sub/\\u6570\\u636e.pt)" in result.stdout


def test_help_does_not_import_torch() -> None:
    script = "import sys; from speculators_compat.cli import main; main(['verify', '--help'], standalone_mode=False)"
    script += "; assert 'torch' not in sys.modules"
    assert "--record" in subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout


@given(st.integers(1, 10_000))
def test_positions_begin_at_the_first_token_and_end_at_the_last(tokens: int) -> None:
    found = positions(tokens)
    assert (found[0], found[-1]) == (0, tokens - 1)
    assert found == sorted(set(found))
    assert len(found) <= tokens.bit_length() + 1


@given(st.lists(st.tuples(st.text(max_size=5), st.integers(0), st.text(max_size=5)), max_size=5), st.data())
def test_records_survive_a_cut_anywhere(
    tmp_path_factory: pytest.TempPathFactory, fields: list[tuple[str, int, str]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("records") / "results"
    records = [Record(Stamp(name, size, index), (Fault("format", text),)) for index, (name, size, text) in enumerate(fields)]
    with Journal(path) as journal:
        assert list(journal.keeping(iter(records))) == records
    assert list(load(path).values()) == records
    os.truncate(path, data.draw(st.integers(0, path.stat().st_size)))
    kept = list(load(path).values())
    assert kept == records[: len(kept)]
    with Journal(path) as journal:
        list(journal.keeping(iter(records[len(kept) :])))
    assert list(load(path).values()) == records


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, -1.0, 0.5]), min_size=5, max_size=5), min_size=1, max_size=20))
def test_row_hashes_are_equal_where_rows_are(rows: list[list[float]]) -> None:
    hashes = sample.row_hashes(torch.tensor(rows, dtype=torch.bfloat16)).tolist()
    assert len(set(hashes)) == len(set(map(tuple, rows)))
