"""Every built-in spec compiles at the oldest, the usual and the newest opset, for both
CPU targets, and agrees: each for both targets at two opsets (a family for one), of
which every second case runs with `make parity`; at all of them under `slow`.

What a spec needs besides its defaults, to be small, stands in SMALL
(tests/support/small.py).
"""

from pathlib import Path

import pytest
from support.covering import covering
from support.small import FAMILIES, SMALL
from support.verify_lines import verify_model

import specc
from specc.cli.main import main
from specc.library.spec_files import SPEC_SUFFIXES, get_specs_directory, list_builtin_specs

TRAINED = {"dates", "digits", "numbers", "xor"}
TARGETS, OPSETS = ("onnx", "ort-cpu"), (17, 20, 23, 26)
SPECS = list(SMALL)


def _kept(spec: int, target: int, opset: int) -> bool:
    """Both targets, each at an opset of its own; one of the two for a family, of which
    the parity suite runs every head.
    """
    both = SPECS[spec] not in FAMILIES or target == spec // len(OPSETS) % 2
    return both and opset == (spec + 2 * target) % len(OPSETS)


LATER = {
    *((name, target) for name in [*FAMILIES][1::2] for target in TARGETS),
    *((name, TARGETS[n % 2]) for n, name in enumerate(SPECS) if name not in FAMILIES),
}
"""What runs with `make parity`, besides what is slow."""
SWEEP = [
    pytest.param(*case.values, marks=case.marks or pytest.mark.parity)
    if case.values[:2] in LATER
    else case
    for case in covering(_kept, SPECS, TARGETS, OPSETS)
]


def test_every_spec_is_here() -> None:
    assert set(SMALL) == set(list_builtin_specs())


@pytest.mark.parametrize(("spec", "target", "opset"), SWEEP)
def test_it_compiles_loads_and_agrees(spec: str, target: str, opset: int, tmp_path: Path) -> None:
    path = tmp_path / f"{spec}.onnx"
    seed = None if spec in TRAINED else 0
    specc.compile(spec, path, set=SMALL[spec], init=seed, target=target, opset=opset)
    assert list(verify_model(specc.load(path).whole, rounds=2))


@pytest.mark.parametrize(
    "path",
    sorted(p for f in ("std", "models") for p in (get_specs_directory() / f).iterdir()),
    ids=lambda p: p.name,
)
def test_it_stands_in_canonical_form(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if path.suffix in SPEC_SUFFIXES:
        assert main(["fmt", "--check", str(path)]) == 0, capsys.readouterr().err
