"""Nightlies and source builds: the real vLLM under metadata that misreport it. What is found in its code decides."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

import speculators_compat
from speculators_compat.detection import detect
from tests.engine.support import run_script

SCRIPT = """
    import json, os, sys
    import speculators_compat
    from pathlib import Path
    from tests.engine.support import Extractor, prompt

    if __name__ == "__main__":
        with Extractor(Path(sys.argv[1]), "llama") as extractor:
            extractor.check([prompt(20), prompt(300)])
        status = speculators_compat.status()
        decided = {d.adapter.name: d.state.value for d in status.decisions}
        print(json.dumps([[str(found) for found in status.installed], decided]))
"""


def misreport(directory: Path, distribution: str, version: str) -> None:
    """Lay the installed vLLM out once more, as a build of another name and version."""
    (origin,) = find_spec("vllm").submodule_search_locations  # type: ignore[union-attr, misc]
    (directory / "vllm").symlink_to(origin)
    info = directory / f"{distribution}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "RECORD").write_text("vllm/__init__.py,,\n")


@pytest.mark.parametrize(
    ("distribution", "version"),
    [
        # vLLM itself reads its platform, cpu, off its version.
        # PEP 440 sorts a nightly before the release that it leads up to, and so before contracts that are broken in it.
        ("vllm", f"{detect('vllm').release}rc2.dev87+gabc1234.cpu"),
        ("vllm", "0.1.dev1+gabc1234.cpu"),
        ("vllm-nightly", "dev+cpu"),
    ],
)
def test_the_plan_is_that_of_the_code(checkpoints: Path, tmp_path: Path, distribution: str, version: str) -> None:
    misreport(tmp_path, distribution, version)
    process = run_script(SCRIPT, str(checkpoints), PYTHONPATH=str(tmp_path))
    assert process.returncode == 0, process.stderr[-4000:]
    installed, decided = json.loads(process.stdout.splitlines()[-1])
    assert any(version in found for found in installed), installed
    assert decided == {d.adapter.name: d.state.value for d in speculators_compat.status().decisions}
    known = version.startswith(str(detect("vllm").release))
    assert ("has not been tested" in process.stderr) is not known
