"""The journeys that docs/architecture.md tells pass functions that exist."""

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

DOC = Path(__file__).parents[2] / "docs" / "architecture.md"
JOURNEYS = re.split(
    r"^### ", DOC.read_text(encoding="utf-8").split("## Four journeys")[1].split("\n## ")[0],
    flags=re.MULTILINE,
)[1:]  # fmt: skip
NAME = re.compile(r"`(specc(?:_\w+)?(?:\.\w+)+)`")


def resolve(name: str) -> object:
    """What a dotted name leads to: modules as far as there are any, then attributes."""
    parts = name.split(".")
    depth = len(parts) - 1
    while depth > 1 and not _is_module(".".join(parts[:depth])):
        depth -= 1
    found: object = import_module(".".join(parts[:depth]))
    for part in parts[depth:]:
        found = getattr(found, part)
    return found


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a parent is no package
        return False


@pytest.mark.parametrize("journey", JOURNEYS, ids=lambda j: j.split("\n")[0])
def test_every_stop_exists(journey: str) -> None:
    stops = NAME.findall(journey)
    assert len(stops) >= 4
    for stop in stops:
        assert callable(resolve(stop)), stop


def test_there_are_four() -> None:
    assert len(JOURNEYS) == 4


def test_a_stop_that_is_gone_is_noticed() -> None:
    with pytest.raises(AttributeError):
        resolve("specc.compiler.model.gone")
