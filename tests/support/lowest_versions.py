"""Print the lowest declared version of each dependency of specc, for pip."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def list_lowest_versions() -> list[str]:
    """Return requirements such as `numpy==1.26.0` for `numpy>=1.26.0`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [text.replace(">=", "==") for text in project["dependencies"]]


if __name__ == "__main__":
    print(*list_lowest_versions())
