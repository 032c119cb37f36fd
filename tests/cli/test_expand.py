"""`specc expand` prints a standalone spec with the same graph and weights, byte for byte."""

import re
from pathlib import Path

import pytest
from support.parameter_sweeps import sample_sweep

from specc.cli import main as cli
from specc.cli.fmt_convert_expand import expand_spec
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.frontend.spec_modules import collect_fields_by_path
from specc.ir.ir_printer_and_lexer import format_ir as as_text
from specc.library.spec_file_lookup import SpecLibrary, find_builtin_specs
from specc.syntax import ast
from specc.syntax.ast import walk_tree
from specc.syntax.dsl.expression_printer import format_expression

SOME = ("han", "small_translator", "kv_lookup", "xor", "vit")


def check_expansion(name: str, directory: Path) -> tuple[ast.File, tuple[str, ...]]:
    """Expand the spec to a file in both syntaxes and compare the graphs."""
    file, told = expand_spec(open_spec(name))
    assert not file.extends
    wanted = as_text(elaborate_spec(open_spec(name)).graph)
    for ending in ("specc", "yaml"):
        out = directory / f"alone.{ending}"
        assert cli.main(["expand", name, "-o", str(out), "--force"]) == 0
        again = open_spec(str(out))
        assert as_text(elaborate_spec(again).graph) == wanted
    return file, told


@pytest.mark.parametrize("name", sample_sweep(SOME))
def test_expansion_is_the_same_model(name: str, tmp_path: Path) -> None:
    check_expansion(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(find_builtin_specs()))
def test_every_spec_expands_to_a_standalone_spec(name: str) -> None:
    file, told = expand_spec(open_spec(name))
    assert not file.extends
    assert not any("stays" in line for line in told)


def test_expand_without_config_values() -> None:
    """`encoder_decoder` has no default vocabulary size."""
    file, told = expand_spec(open_spec("encoder_decoder"))
    assert file.model == "encoder_decoder"
    assert all("stays" not in line for line in told)


HIDES = """specc 1
model hides
config { %s: positions = sinusoid(layout=interleaved)  d: int = 8 }
dims batch, n
graph g(x: float[batch, n, d], keep: keep[batch, n]) -> (y: float[batch, n, d]) {
  at = position_ids(keep)
  h = %s
  return residual(x + apply(%s, at, dim=d), f=mlp(hidden=9, act=relu), norm=layer_norm(eps=1e-5), norm_placement=pre,
                  name="norm") + h
}
%s
"""
BLOCK = """block split_heads(x: float[b, n, e]) -> float[b, n, e] {
  return x * 2.0
}"""


@pytest.mark.parametrize(
    ("value", "own", "block", "renamed"),
    [
        # `position_ids` in std is the built-in function
        ("positions", "x", "", {"positions": "positions_"}),
        # a parameter of the std block shadows the name in the file
        ("place", "x", "", {}),
        ("attend", "attention(x, heads=2, mask=all) @ a", "", {"attend": "attend_"}),
        # the file has a block with the name of a std block
        ("waves", "split_heads(x) + (attention(x, heads=2, mask=all) @ a)", BLOCK, {}),
    ],
)
def test_names_that_shadow_std_names(
    value: str, own: str, block: str, renamed: dict[str, str], tmp_path: Path
) -> None:
    """Every std block is expanded, whatever names the file uses."""
    path = tmp_path / "hides.specc"
    path.write_text(HIDES % (value, own, value, block))
    wanted = as_text(elaborate_spec(open_spec(str(path))).graph)
    file, told = expand_spec(open_spec(str(path)))
    assert [line.split("`")[1:4:2] for line in told] == [[*p] for p in renamed.items()]
    out = tmp_path / "alone.specc"
    assert cli.main(["expand", str(path), "-o", str(out)]) == 0
    assert as_text(elaborate_spec(open_spec(str(out))).graph) == wanted
    own_names = {i.name for i in file.items if isinstance(i, ast.Block | ast.AttentionDef)}
    named = {node.path for node in walk_tree(file) if isinstance(node, ast.Name)}
    left = {n for n in named & {*SpecLibrary().list_std_names()} if n not in own_names}
    assert left <= {"mean", "topk"}


def test_expansion_uses_no_std_block() -> None:
    """The expansion uses only its own names and built-in functions."""
    file, told = expand_spec(open_spec("vit"))
    assert not told
    own = {i.name for i in file.items if isinstance(i, ast.Block | ast.AttentionDef)}
    named = {node.path for node in walk_tree(file) if isinstance(node, ast.Name)}
    assert "encoder_layer" in own or own & named
    left = {n for n in named & {*SpecLibrary().list_std_names()} if n not in own}
    assert left <= {"mean", "topk"}


def test_instance_values_become_defaults() -> None:
    """This includes fields of nested records and values from `--set`."""
    spec = open_spec("small_translator", config_settings=["width=128"])
    file, _ = expand_spec(spec)
    (config,) = (i for i in file.items if isinstance(i, ast.ConfigSection))
    fields = tuple(e for e in config.entries if isinstance(e, ast.ConfigField))
    found = {path: field.default for path, field in collect_fields_by_path(fields).items()}
    assert isinstance(found["width"], ast.NumberLiteral)
    assert found["width"].text == "128"
    assert isinstance(found["encoder.layers"], ast.NumberLiteral)
    assert found["encoder.layers"].text == "4"
    assert file.model == "small_translator"


def test_std_length_does_not_clash_with_config() -> None:
    """`gpt2` has a config value `d`, and std blocks have a length with the same name."""
    file, told = expand_spec(open_spec("gpt2", config_settings=["layers=1"]), keep_sources=True)
    assert not told
    blocks = [i for i in file.items if isinstance(i, ast.Block) and i.kind == "block"]
    assert blocks


def test_keep_from_keeps_the_config_keys(tmp_path: Path) -> None:
    """Without --keep-from, a note names the fields that no longer read config.json."""
    path = tmp_path / "mine.specc"
    path.write_text("specc 1\nmodel mine\nextends gpt2\nconfig { layers = 1  d = 24  heads = 2 }\n")
    for keeps_sources in (False, True):
        file, notes = expand_spec(open_spec(str(path)), keep_sources=keeps_sources)
        (config,) = (i for i in file.items if isinstance(i, ast.ConfigSection))
        fields = {e.name: e for e in config.entries if isinstance(e, ast.ConfigField)}
        assert [bool(fields[n].sources) for n in ("layers", "d", "vocab")] == [
            keeps_sources, keeps_sources, True
        ]  # fmt: skip
        defaults = [fields[n].default for n in ("layers", "d")]
        assert [format_expression(e) for e in defaults if e is not None] == ["1", "24"]
        assert [{"d", "layers"} <= {*re.findall(r"\w+", n)} for n in notes] == (
            [] if keeps_sources else [True]
        )


def test_set_value_of_a_submodel(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["expand", "llava", "--set", "text.layers=2"]) == 1
    assert "E0982" in capsys.readouterr().err


def test_expand_does_not_overwrite_its_input(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("specc: 1\nmodel: mine\nextends: xor\n")
    before = path.read_text()
    assert cli.main(["expand", str(path), "-o", str(path), "--force"]) != 0
    assert path.read_text() == before
