"""Unused names: built-in specs have no warning, and each name made unused gets one."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from specc.driver.spec_check_and_elaboration import check_spec, elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.frontend.unused_names_and_share_rules import (
    EXPORT_FIELDS,
    collect_used_names,
    find_unused_names_in_files,
)
from specc.library.spec_file_lookup import find_builtin_specs, read_spec_file
from specc.syntax import ast
from specc.syntax.ast import iterate_children, walk_tree

SPECS = Path(__file__).parents[2] / "specs"
MODELS = find_builtin_specs()
FRESH = "never_read"


@cache
def read_files() -> dict[Path, ast.File]:
    """Return the trees of all built-in specs and of std."""
    paths = (*MODELS.values(), *SPECS.glob("std/*.specc"))
    return {path: read_spec_file(path, path.name) for path in paths}


@cache
def names_read_by_users() -> dict[Path, set[str]]:
    """Return `encode` for `vision.encode`, by each spec that uses others as `vision`."""
    found = {}
    for path, file in read_files().items():
        if used := [i.name for i in file.items if isinstance(i, ast.UseStatement)]:
            heads = (name.partition(".") for name in collect_used_names(file))
            found[path] = {rest for alias, _, rest in heads if alias in used and rest}
    return found


def list_chain(file: ast.File) -> list[ast.File]:
    base = MODELS.get(Path(file.extends).stem) if file.extends else None
    return [file, *(list_chain(read_files()[base]) if base else [])]


def list_titles(file: ast.File, path: Path) -> list[str]:
    """Return the titles of the warnings if `file` replaces the file at `path`."""
    read = (names for user, names in names_read_by_users().items() if user != path)
    found = find_unused_names_in_files(list_chain(file), EXPORT_FIELDS.union(*read))
    return [d.title for _, d in found]


@pytest.mark.parity
def test_builtin_specs_have_no_unused_names() -> None:
    found = {path.stem: list_titles(file, path) for path, file in read_files().items()}
    assert {name: titles for name, titles in found.items() if titles} == {}


def with_child(node: ast.Node, old: ast.Node, new: ast.Node) -> ast.Node:
    """Return the tree with one node, found by identity, replaced by another."""
    if node is old:
        return new
    changed = {}
    for name in type(node).__dataclass_fields__:
        value = getattr(node, name)
        if isinstance(value, tuple) and any(v is w for v in value for w in list_children(node)):
            made = tuple(with_child(v, old, new) if not isinstance(v, str) else v for v in value)
            if any(a is not b for a, b in zip(made, value, strict=True)):
                changed[name] = made
        elif any(value is w for w in list_children(node)):
            made_one = with_child(value, old, new)
            if made_one is not value:
                changed[name] = made_one
    return replace(node, **changed) if changed else node


def list_children(node: ast.Node) -> list[ast.Node]:
    return list(iterate_children(node))


def rename_each_name(file: ast.File) -> Iterator[ast.File]:
    """Yield the file with one value, parameter or config field renamed at its definition."""
    for item in file.items:
        for node in walk_tree(item):
            match node:
                case ast.AssignmentTarget(name=name) if not name.startswith("_"):
                    pass
                case ast.ConfigField() if (
                    isinstance(item, ast.ConfigSection) and not node.type.fields
                ):
                    pass
                case _:
                    continue
            new_item = with_child(item, node, replace(node, name=FRESH))
            items = tuple(new_item if i is item else i for i in file.items)
            yield replace(file, items=items)


SAMPLE = ("luong", "vit", "whisper", "rwkv", "ntm_read")


@pytest.mark.parity
@pytest.mark.parametrize("name", SAMPLE)
def test_each_renamed_name_is_reported(name: str) -> None:
    path = MODELS[name]
    count = 0
    for changed in rename_each_name(read_files()[path]):
        count += 1
        assert any(f"`{FRESH}`" in title for title in list_titles(changed, path))
    assert count >= 3


def check_titles(tmp_path: Path, body: str, *, params: str = "", rest: str = "") -> list[str]:
    path = tmp_path / "m.specc"
    path.write_text(f"""specc 1
model m
dims batch, n
graph g(x: float[batch, n, 8]{params}) -> (y: float[batch, n, 8]) {{
{body}
}}
{rest}
""")
    spec = open_spec(str(path))
    found = [d for d in check_spec(spec).warnings if d.code == "W0202"]
    again = [d for d in elaborate_spec(spec).warnings if d.code == "W0202"]
    assert found == again
    return [d.title for d in found]


USED = {
    "read in the next iteration": "a = x\ny = x\nrepeat i in 3 { y = a + x\na = y }\nreturn y",
    "collected": "repeat i in 3 collect a { a = x * i }\nreturn a[0]",
    "carried": "h = x[:, 0] * 0.0\nscan t in x along n carry h collect hs { h = h + t\nhs = h }\nreturn hs",
    "read by a branch that is not taken": "a = relu(x)\nwhen false { x = a }\nreturn x",
    "in a placeholder of a weight path": 'k = 3\nreturn linear(x, out=8) @ "layers.{k}"',
    "in a placeholder of a text": 'k = 3\nnames = ["w{k}"]\nreturn linear(x, out=8) @ "{names[0]}"',
    "an underscore": "_spare = relu(x)\nreturn x",
    "in an index": "k = 1\nreturn x + x[:, k:k + 1]",
}


@pytest.mark.parametrize("case", USED)
def test_no_warning_for_a_used_name(case: str, tmp_path: Path) -> None:
    assert check_titles(tmp_path, USED[case]) == []


UNUSED = {
    "overwritten": "a = relu(x)\na = x * 2\nreturn a",
    "overwritten in both branches": "a = relu(x)\nwhen true { a = x } else { a = -x }\nreturn a",
    "assigned after its last use": "a = relu(x)\ny = a\na = y\nreturn y",
    "assigned last in a loop": "y = x\nrepeat i in 3 { y = y + x\na = y }\nreturn y",
    "in a scan": "scan t in x along n collect hs { a = t\nhs = t }\nreturn hs",
    "one of two results": "y, a = chunk(x, 2)\nreturn concat([y, y])",
}


@pytest.mark.parametrize("case", UNUSED)
def test_warning_for_an_unused_value(case: str, tmp_path: Path) -> None:
    assert check_titles(tmp_path, UNUSED[case]) == ["value `a` of `g` is never used"]


def test_input_that_determines_a_length_is_used(tmp_path: Path) -> None:
    assert (
        check_titles(
            tmp_path,
            "return f(x, x)",
            rest="""
block f(x: float[b, n, d], like: float[b, m, e]) -> float[b, n, d] { return x * float(m) }
""",
        )
        == []
    )
    assert check_titles(
        tmp_path,
        "return f(x, x)",
        rest="""
block f(x: float[b, n, d], like: float[b, n, d]) -> float[b, n, d] { return x * float(n) }
""",
    ) == ["parameter `like` of `f` is never used"]


def test_instance_uses_names_in_its_config_values(tmp_path: Path) -> None:
    path = tmp_path / "m.specc"
    path.write_text("""specc 1
model m extends "vit"
block norm_of(x: float[...], eps: float = 1e-5) -> float[...] { return layer_norm(x, eps=eps) }
block spare(x: float[...]) -> float[...] { return x }
config { norm = norm_of }
""")
    found = check_spec(open_spec(str(path))).warnings
    assert [d.title for d in found if d.code == "W0202"] == ["block `spare` is never used"]
