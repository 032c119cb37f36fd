"""Contents of the wheel: an unlisted backend would work from the source tree only."""

import re
import sys
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BACKENDS = {
    p.name for p in (ROOT / "backends").iterdir() if p.is_dir() and p.name.startswith("specc")
}


def test_every_backend_is_packaged() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert set(wheel) == {"specc"} | {f"backends/{name}" for name in BACKENDS}
    assert set(PROJECT["project"]["entry-points"]["specc.backends"].values()) == BACKENDS


def test_backend_package_names() -> None:
    directories = {
        p.name for p in (ROOT / "backends").iterdir() if p.is_dir() and p.name != "__pycache__"
    }
    assert all(name.startswith("specc_") for name in directories)


def test_version_matches_pyproject() -> None:
    text = (ROOT / "specc" / "version.py").read_text(encoding="utf-8")
    assert f'__version__ = "{PROJECT["project"]["version"]}"' in text


def test_distribution_name() -> None:
    # the project `specc` on the package index belongs to somebody else
    assert PROJECT["project"]["name"] == "specc-onnx"
    wrong = re.compile(r"pip install (-U |--upgrade )?['\"]?specc(?!-onnx)\b")
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("specc/**/*.py")]
    said = [p.name for p in pages if wrong.search(p.read_text(encoding="utf-8"))]
    assert not said


def test_index_description_has_no_source_links(monkeypatch: pytest.MonkeyPatch) -> None:
    # hatchling is installed only in build environments
    stub = ModuleType("hatchling.metadata.plugin.interface")
    vars(stub)["MetadataHookInterface"] = object
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hook = module_from_spec(spec)
    spec.loader.exec_module(hook)
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    made = hook.remove_relative_links(page)
    assert not re.search(r"\]\((?!https?:|#)", made)
    # only links and images are removed
    assert made.count("\n") > 0.9 * page.count("\n")
    assert "## Contributing" in made
