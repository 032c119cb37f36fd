"""Suggestions for names of other libraries: the suggested code compiles, for every name."""

import re
from pathlib import Path

import pytest
from support.parameter_sweeps import sample_sweep

from specc.cli.main import main
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import open_spec
from specc.frontend.builtins import BUILTINS
from specc.frontend.foreign_names_and_options import (
    FOREIGN_OPERATIONS,
    FOREIGN_OPTIONS,
    RENAMED_STD_DEFINITIONS,
    REPLACEMENTS_BY_NAME,
)
from specc.library.spec_file_lookup import SpecLibrary

SPEC = """specc 1
model m

config {{ xs: list[int] = [1, 2] }}
dims batch, n, other

{item}

graph g(x: float[batch, n, 8], a: float[batch, n, 8], b: float[batch, n, 8], p: float[batch, 3, 8, 8],
        q: float[batch, 2, n, 4], k: float[batch, 2, n, 4], v: float[batch, 2, n, 4], ids: int[batch, n],
        seen: bool[batch, n, 8], keep: keep[batch, n]) -> (y: float[...]) {{
  {statement}
  return x
}}
"""
PIECES = sorted(
    {
        (piece, names.split()[0])
        for names, text in FOREIGN_OPERATIONS.items()
        for piece in re.findall(r"`([^`]*)`", text)
        if re.search(r"[({\[]| [-+*/%=<>&|!]+ ", piece)
    }
)
KNOWN = {*BUILTINS, *SpecLibrary().list_std_names()}


def checked(tmp_path: Path, statement: str, item: str = "") -> None:
    path = tmp_path / "m.specc"
    path.write_text(SPEC.format(statement=statement, item=item), encoding="utf-8")
    check_spec(open_spec(str(path)), "")


@pytest.mark.parametrize(
    ("piece", "name"), sample_sweep([*PIECES]), ids=[f"{n}-{p}" for p, n in PIECES]
)
def test_suggested_code_compiles(piece: str, name: str, tmp_path: Path) -> None:
    if piece.startswith("mask "):
        checked(tmp_path, "", item=piece)
    elif piece.startswith("repeat "):
        checked(tmp_path, piece)
    elif piece.startswith("keep["):
        assert piece in SPEC  # the type of an input
    elif " = " in piece:
        checked(tmp_path, piece)
    else:
        checked(tmp_path, f"z = {piece}")


def test_invalid_code_fails_the_check(tmp_path: Path) -> None:
    with pytest.raises(SpeccError):
        checked(tmp_path, "z = split(x, into=[3, 4], axis=2)")
    with pytest.raises(SpeccError):
        checked(tmp_path, "z = swish(x)")


def test_foreign_names_are_unique() -> None:
    names = [name for names in FOREIGN_OPERATIONS for name in names.split()]
    assert len(names) == len(set(names)) == len(REPLACEMENTS_BY_NAME) > 150


def test_foreign_names_are_not_defined_in_specs() -> None:
    assert not KNOWN.intersection(" ".join(FOREIGN_OPERATIONS).split())


def check_statement(tmp_path: Path, value: str) -> str:
    with pytest.raises(SpeccError) as failed:
        checked(tmp_path, f"z = {value}")
    found = failed.value.diagnostics[0]
    return " ".join((found.code, found.title, *found.helps))


@pytest.mark.parametrize(
    ("written", "code", "told"),
    [
        ("nn.Linear(x, 8)", "E0204", "`linear`"),
        ("F.softmax(x)", "E0204", "`softmax`"),
        ("nn.functional.softmax(x)", "E0204", "`softmax`"),
        ("torch.cat([x, x])", "E0204", "concat("),
        ("nn.LayerNorm(x)", "E0204", "`layer_norm`"),
        ("nn.Dropout(x)", "E0204", "`dropout`"),
        ("nn.Dropout2d(x)", "E0204", "remove this call"),
        ("x.reshape(3)", "E0204", "rearrange("),
        ("x.softmax(3)", "E0204", "`softmax`"),
        ("x.shape", "E0202", "length("),
        ("x.T", "E0202", "transpose("),
        ("swish(x)", "E0204", "`silu`"),
        ("softmax_causal(x)", "E0204", "masked_softmax("),
        ("masked_fill(x, 1)", "E0204", "where("),
        ("print(x)", "E0204", "--tap"),
        ("softmax(x, dim=1)", "E0201", "`axis`"),
        ("linear(x, out_features=8) @ w", "E0201", "`out`"),
        ("conv(x, out=8, kernel_size=3) @ w", "E0201", "`kernel`"),
        ("attention(x, num_heads=2, mask=all) @ w", "E0201", "`heads`"),
        # neither a library nor a known name
        ("other_file.f(x)", "E0204", "use"),
        ("x.mystery(x)", "E0204", "no method `mystery`"),
        ("torch.mystery(x)", "E0204", "belongs to another library"),
    ],
)
def test_suggestion_for_a_foreign_name(written: str, code: str, told: str, tmp_path: Path) -> None:
    text = check_statement(tmp_path, written)
    assert text.startswith(code)
    assert told in text, text


@pytest.mark.parametrize(("old", "new"), RENAMED_STD_DEFINITIONS.items())
def test_former_std_names_suggest_current_names(
    old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    help = f"`{old}` is now `{new}`"
    assert new in SpecLibrary().list_std_names()
    assert check_statement(tmp_path, f"{old}(x)").startswith("E0204")
    assert help in check_statement(tmp_path, f"{old}(x)")
    assert help in check_statement(tmp_path, f"apply({old}, x)")
    assert main(["doc", old]) == 1
    assert help in capsys.readouterr().err


def test_suggested_options_exist() -> None:
    library = SpecLibrary()
    takes = {slot.name for word in BUILTINS.values() for slot in word.parameters}
    for name in library.list_std_names():
        found = library.find_std_item(name)
        assert found is not None
        takes |= {param.name for param in found[0].params or ()}
    assert takes.issuperset(FOREIGN_OPTIONS.values())
