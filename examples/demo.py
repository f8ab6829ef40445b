"""The whole job on a CPU: conversations to training files, with every state held against Hugging Face.

What a user's script does stands in `extract`; the line that this project adds is the first import. Run it with
`python -m nox -s demo`, which installs what it needs.
"""

from __future__ import annotations

import speculators_compat  # isort: skip  # the line to add, before speculators

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from reference import Reference, relative_error
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from speculators.data_generation import VllmHiddenStatesGenerator
from speculators.data_generation.preprocessing import load_and_preprocess_dataset
from speculators.train.data import Eagle3SampleFileDataset
from tiny_checkpoints import make, text_twin

CONVERSATIONS = Path(__file__).with_name("conversations.jsonl")
LAYERS = [1, 2, 3, 4]
MAX_LENGTH = 1024
BATCH = 8


def extract(model: Path, output: Path, console: Console) -> list[Path]:
    """Extract the hidden states of every conversation, in batches, one file each, as speculators' trainer reads them."""
    dataset, _ = load_and_preprocess_dataset(
        target_model_path=str(model),
        train_data_path=str(CONVERSATIONS),
        seq_length=MAX_LENGTH,
        build_dataset_num_proc=1,
        token_freq_path=str(output / "token_freq.pt"),
        cache_dir=str(output / "cache"),
    )
    generator = VllmHiddenStatesGenerator(str(model), layer_ids=LAYERS, max_model_len=MAX_LENGTH)
    files: list[Path] = []
    with Progress(console=console) as progress:
        task = progress.add_task(f"extracting from {model.name}", total=len(dataset))
        for start in range(0, len(dataset), BATCH):
            batch = dataset[start : start + BATCH]
            for offset, result in enumerate(generator.generate(batch["input_ids"])):
                result["loss_mask"] = batch["loss_mask"][offset][: len(result["input_ids"])]
                files.append(output / f"data_{start + offset}.pt")
                torch.save(result, files[-1])
                progress.advance(task)
    return files


def compare(model: Path, files: list[Path]) -> dict[str, Any]:
    """Hold every state in the files against Hugging Face in float32, and Hugging Face's own bfloat16 beside it."""
    reference = Reference(text_twin(model))
    rounded = Reference(text_twin(model), torch.bfloat16)
    deviation = by_rounding = tokens = 0.0
    for file in files:
        sample = torch.load(file, weights_only=True)
        ids = sample["input_ids"].tolist()
        expected = reference.states(ids, LAYERS)
        deviation = max(deviation, *map(relative_error, sample["hidden_states"], expected))
        by_rounding = max(by_rounding, *map(relative_error, rounded.states(ids, LAYERS), expected))
        tokens += len(ids)
    return {"deviation": deviation, "by rounding": by_rounding, "tokens": int(tokens)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo-output"))
    options = parser.parse_args()
    # A small KV cache, and no MLA: vLLM has no CPU kernel for it.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_MLA_DISABLE", "1")
    console = Console()
    table = Table(title="Hidden states, and their largest deviation from Hugging Face in float32")
    for column in ("model", "files", "tokens", "layers", "deviation", "of bf16", "read as"):
        table.add_column(column, no_wrap=True)
    failed = False
    for name in ("llama", "kimi_k25"):
        model = make(name, options.output.resolve() / "models" / name)
        output = options.output.resolve() / "states" / name
        output.mkdir(parents=True, exist_ok=True)
        files = extract(model, output, console)
        found = compare(model, files)
        sample = Eagle3SampleFileDataset(max_len=MAX_LENGTH, file_list=[str(file) for file in files])[0]
        read = "x".join(map(str, sample["hidden_states"].shape))
        deviation, by_rounding = found["deviation"], found["by rounding"]
        failed |= deviation > 2 * by_rounding
        table.add_row(
            name,
            str(len(files)),
            str(found["tokens"]),
            ",".join(map(str, LAYERS)),
            f"{deviation:.4f}",
            f"{by_rounding:.4f}",
            read,
        )
    console.print(str(speculators_compat.status()), highlight=False)
    console.print(table)
    console.print(f"Files that speculators' trainer loads: {options.output / 'states'}")
    if failed:
        raise SystemExit("The states deviate from Hugging Face by more than twice what bfloat16 itself does.")


if __name__ == "__main__":
    main()
