"""Every shipped spec compiles at the oldest, the usual and the newest opset, for both CPU targets, and agrees.

What a spec needs besides its defaults, to be small, stands in SMALL (tests/support/small.py).
"""

from pathlib import Path

import pytest
from small import SMALL

import specc
from specc.cli import main
from specc.library import SUFFIXES, root, shipped
from specc.verifying import verify

TRAINED = {"dates", "digits", "numbers", "xor"}


def test_every_spec_is_here() -> None:
    assert set(SMALL) == set(shipped())


@pytest.mark.parametrize("opset", [17, 20, 23, 26])
@pytest.mark.parametrize("target", ["onnx", "ort-cpu"])
@pytest.mark.parametrize("spec", SMALL)
def test_it_compiles_loads_and_agrees(spec: str, target: str, opset: int, tmp_path: Path) -> None:
    path = tmp_path / f"{spec}.onnx"
    seed = None if spec in TRAINED else 0
    specc.compile(spec, path, set=SMALL[spec], init=seed, target=target, opset=opset)
    assert list(verify(specc.load(path), rounds=2))


@pytest.mark.parametrize(
    "path", sorted(p for f in ("std", "models") for p in (root() / f).iterdir()), ids=lambda p: p.name
)
def test_it_stands_in_canonical_form(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if path.suffix in SUFFIXES:
        assert main(["fmt", "--check", str(path)]) == 0, capsys.readouterr().err
