"""Draws what the commands print, for the README and the front page: `nox -s picture` writes docs/images/commands.svg."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from tiny_checkpoints import make

PICTURE = Path(__file__).with_name("images") / "commands.svg"
WIDTH = 110
# The sizes that Kimi-K2.5 is published with; the rest of its config is that of the tiny checkpoint.
SIZES = {
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 384,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "vocab_size": 163840,
}
INT4 = {"num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": True, "type": "int"}
QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4}},
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
}
COMMANDS = (
    ["doctor", "--symptom", "Boolean value of Tensor with more than one value is ambiguous"],
    ["preflight", "Kimi-K2.5", "--layer-ids", "2,30,58,60", "--tensor-parallel-size", "8"],
)


def write_config(folder: Path) -> None:
    """A checkpoint without weights, with the sizes of the real one."""
    make("kimi_k25", folder)
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["text_config"] |= SIZES | {"quantization_config": QUANTIZATION}
    path.write_text(json.dumps(config, indent=1))


def main() -> None:
    console = Console(record=True, width=WIDTH, file=StringIO())
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder, "Kimi-K2.5"))
        for arguments in COMMANDS:
            shown = " ".join(f'"{argument}"' if " " in argument else argument for argument in arguments)
            console.print(f"[bold]$ speculators-compat {shown}[/]", highlight=False, soft_wrap=True)
            command = [sys.executable, "-m", "speculators_compat", *arguments]
            process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
            console.print(Text.from_ansi(process.stdout))
    # Nothing is fetched when it is looked at.
    drawn = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="speculators-compat"), flags=re.DOTALL)
    PICTURE.write_text(drawn)


if __name__ == "__main__":
    main()
