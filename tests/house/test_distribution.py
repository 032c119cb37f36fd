"""What the wheel ships. A backend folder that is not listed would work here and be
missing there.
"""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BACKENDS = {
    p.name
    for p in (ROOT / "backends").iterdir()
    if p.is_dir() and p.name.startswith("specc")
}


def test_every_backend_is_shipped_and_announced() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert set(wheel) == {"specc"} | {f"backends/{name}" for name in BACKENDS}
    assert (
        set(PROJECT["project"]["entry-points"]["specc.backends"].values()) == BACKENDS
    )


def test_backend_folders_cannot_shadow_anything() -> None:
    folders = {
        p.name
        for p in (ROOT / "backends").iterdir()
        if p.is_dir() and p.name != "__pycache__"
    }
    assert all(name.startswith("specc_") for name in folders)


def test_the_version_is_said_once() -> None:
    text = (ROOT / "specc" / "version.py").read_text(encoding="utf-8")
    assert f'__version__ = "{PROJECT["project"]["version"]}"' in text
