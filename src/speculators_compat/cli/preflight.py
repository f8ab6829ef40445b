"""`speculators-compat preflight`: what will go wrong in twenty minutes, said in one."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from speculators_compat.activation import switched_off
from speculators_compat.cli.doctor import gpus
from speculators_compat.cli.signals import terminating
from speculators_compat.outlook import outlook
from speculators_compat.preflight.attempt import Attempt, Settings, attempt
from speculators_compat.preflight.estimate import Estimate, estimate
from speculators_compat.preflight.shrinking import LAYERS, Config, decoder_config, number

NOT_TRIED = 3
COUNT = click.IntRange(min=1)


class LayerIds(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Layer indices with commas between them."""

    name = "layers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        try:
            return [int(index) for index in value.strip("[]").split(",")]
        except ValueError:
            self.fail(f"found {value!r}, expected indices such as 2,30,58,60", param, ctx)


@click.command()
@click.argument("model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--layer-ids", type=LayerIds(), help="The layers to capture, such as 2,30,58,60. [default: upstream's four]")
@click.option("--max-model-len", type=COUNT, default=2048, show_default=True)
@click.option("--tensor-parallel-size", type=COUNT, default=1, show_default=True)
@click.option("--gpu-memory-utilization", type=click.FloatRange(0, 1, min_open=True), default=0.8, show_default=True)
@click.option("--samples", type=COUNT, default=10_000, show_default=True, help="How many prompts the run will extract.")
@click.option("--tokens-per-sample", type=COUNT, default=1024, show_default=True, help="How long they are on average.")
@click.option("--estimate-only", is_flag=True, help="Do not run anything.")
@click.option("--timeout", default=300.0, show_default=True, help="Seconds after which a small model counts as stuck.")
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path), help="Keep here what vLLM and its workers wrote.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def preflight(
    model: Path,
    layer_ids: list[int] | None,
    max_model_len: int,
    tensor_parallel_size: int,
    gpu_memory_utilization: float,
    samples: int,
    tokens_per_sample: int,
    estimate_only: bool,
    timeout: float,
    log: Path | None,
    as_json: bool,
) -> None:
    """Try the extraction of the checkpoint MODEL, a folder, in a minute.

    A small model of the same architecture, quantisation and tokenizer is made from its config, and run with random weights by
    the real vLLM in real workers; the checkpoint's own weights are not read. Its states have to be complete, finite, and
    independent of batching, of how prompts are cut, and of what they share. What the real run needs is estimated beside it.

    Exits with 1 if something does not hold or cannot fit, and with 3 if this machine could not try it.
    """
    config = _config(model)
    layers = number(decoder_config(config), LAYERS)
    if layers is None:
        raise click.ClickException(f"{model / 'config.json'} does not say how many decoder layers there are.")
    chosen = layer_ids or [2, layers // 2, layers - 3, layers - 1]
    if wrong := [index for index in chosen if not 0 <= index < layers]:
        raise click.BadParameter(f"found {wrong}, expected indices below {layers}", param_hint="--layer-ids")
    devices = gpus()
    name, memory = devices[0] if devices else ("", 0)
    needed = estimate(
        model,
        config,
        layers=len(set(chosen)),
        max_model_len=max_model_len,
        tensor_parallel_size=tensor_parallel_size,
        gpu_memory_utilization=gpu_memory_utilization,
        samples=samples,
        tokens_per_sample=tokens_per_sample,
        gpu_memory=memory,
        gpu_name=name,
    )
    settings = Settings(tuple(chosen), max_model_len, tensor_parallel_size, gpu_memory_utilization, len(devices), timeout)
    problems, tried = [*needed.problems, *(() if estimate_only else outlook().problems)], None
    if not estimate_only and len(problems) == len(needed.problems):
        status = Console(stderr=True, highlight=False).status(f"trying a small {model.resolve().name}")
        with terminating(), tempfile.TemporaryDirectory(prefix="preflight-") as folder, status:
            tried = attempt(model, config, Path(folder), settings)
        if log is not None:
            log.write_text(tried.log)
    verdict = _verdict(tried, settings, problems)
    if as_json:
        click.echo(
            json.dumps(
                {**asdict(verdict), "checks": [asdict(c) for c in tried.checks] if tried else [], "estimate": asdict(needed)},
                indent=1,
            )
        )
    else:
        _print(tried, needed, samples, verdict)
    raise SystemExit(verdict.exit_code)


@dataclass(frozen=True)
class Verdict:
    """What the answer comes to.

    Attributes:
        exit_code: 0, 1 or `NOT_TRIED`.
        problems: What does not hold, or cannot fit.
        not_tried: What this machine could not say.
    """

    exit_code: int
    problems: tuple[str, ...]
    not_tried: tuple[str, ...]


def _verdict(tried: Attempt | None, settings: Settings, problems: list[str]) -> Verdict:
    if tried is None:
        return Verdict(int(bool(problems)), tuple(problems), ("Nothing was run.",))
    left_out = [tried.left_out] if tried.left_out else []
    if settings.ranks < settings.tensor_parallel_size:
        left_out.append(f"tensor parallel size {settings.tensor_parallel_size}: tried with {settings.ranks}")
    if not settings.gpus:
        left_out.append("kernels and memory of a GPU: there is none here")
        if tried.lacks_a_kernel and not (tried.cures() or switched_off()):
            code = 1 if problems else NOT_TRIED
            return Verdict(code, tuple(problems), (*left_out, f"vLLM did not run it on this CPU: {tried.words()}"))
    if not tried.held:
        problems.append(tried.words())
        problems += [f"The adapter {cure.name} cures that; it is switched off, or does not reach it." for cure in tried.cures()]
    return Verdict(int(bool(problems)), tuple(problems), tuple(left_out))


def _config(model: Path) -> Config:
    try:
        config: Config = json.loads((model / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{model} is no checkpoint that can be read: {error}") from error
    if not isinstance(config, dict):
        raise click.ClickException(f"{model / 'config.json'} holds no config.")
    return config


def _print(tried: Attempt | None, needed: Estimate, samples: int, verdict: Verdict) -> None:
    console = Console(highlight=False)
    checks = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for check in tried.checks if tried else ():
        checks.add_row("[green]holds[/]" if check.held else "[red]fails[/]", check.name, escape(check.words))
    console.print(checks)
    table = Table(title="Estimate", box=None, padding=(0, 2, 0, 0), title_justify="left", show_header=False)
    for what, amount in (
        ("weights, all GPUs", _bytes(needed.weights) + ("" if needed.weights_known else " by the config: no files here")),
        ("KV cache, a token on each GPU", _bytes(needed.kv_cache_per_token)),
        ("KV cache, tokens that it holds", "unknown" if needed.kv_cache_tokens is None else f"{needed.kv_cache_tokens:,}"),
        ("states of a step, on each GPU", _bytes(needed.capture)),
        ("states of a token", _bytes(needed.states_per_token)),
        (f"{samples:,} samples on disk", _bytes(needed.disk)),
        ("loading", _duration(needed.load_seconds)),
        ("extracting them", _duration(needed.run_seconds)),
    ):
        table.add_row(what, amount)
    console.print(table)
    for words in verdict.not_tried:
        console.print(f"[yellow]not tried[/]: {escape(words)}")
    for words in verdict.problems:
        console.print(f"[red]will not work[/]: {escape(words)}")
    if tried and not verdict.exit_code:
        console.print("[green]Nothing stands in the way[/] of the large model that a small one shows.")


def _bytes(amount: int | None) -> str:
    if amount is None:
        return "unknown"
    power = min(max(len(str(amount)) - 1, 0) // 3, 4)
    return f"{amount / 1000**power:.3g} {('bytes', 'KB', 'MB', 'GB', 'TB')[power]}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown without a GPU"
    return f"about {seconds / 3600:.1f} hours" if seconds > 5400 else f"about {max(seconds / 60, 1):.0f} minutes"
