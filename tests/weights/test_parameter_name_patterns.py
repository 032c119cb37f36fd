"""Parameter names: patterns, ranges, similar names."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specc.weights.parameter_name_patterns import (
    NamePattern,
    find_nearest_name,
    format_name_groups,
    group_parameter_names,
    infer_name_patterns,
    replace_numbers_with_placeholders,
)


def test_patterns() -> None:
    layer = NamePattern("h.{i}.attn.bias")
    assert layer.matches("h.11.attn.bias")
    assert not layer.matches("h.11.c_attn.bias")
    assert not layer.matches("h.x.attn.bias")
    assert not layer.matches("h.11.attn.bias ")
    assert NamePattern("*.position_ids").matches("bert.embeddings.position_ids")
    assert not NamePattern("*.position_ids").matches("position_ids")
    assert NamePattern("a[0].b+").matches("a[0].b+")


def test_stars_match_any_text() -> None:
    assert NamePattern("a[0].*").matches("a[0].w")
    assert not NamePattern("a[0].*").matches("a0.w")
    assert not NamePattern("h.?.w").matches("h.1.w")
    assert NamePattern("h*1*1").matches("h.1.1")
    assert not NamePattern("h*1*1").matches("h.1")
    assert not NamePattern("ab*ba").matches("aba")
    assert NamePattern("*").matches("")
    # patterns that cannot match are rejected without exponential backtracking
    assert not NamePattern("*a" * 40 + "b").matches("a" * 4000)


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_stars_equal_fnmatch(pattern: str, name: str) -> None:
    assert NamePattern(pattern).matches(name) is fnmatchcase(name, pattern)


def test_repeated_placeholder_has_one_value() -> None:
    assert NamePattern("{i}.{i}").matches("4.4")
    assert not NamePattern("{i}.{i}").matches("4.5")


def test_placeholders_are_substituted() -> None:
    captures = NamePattern("*.{i}.*.weight").get_captures("bert.3.norm.weight")
    assert captures is not None
    assert captures.fill_template("x.*.{i}.*.gamma.{j}") == "x.bert.3.norm.gamma.{j}"


def test_names_are_grouped() -> None:
    names = [f"h.{i}.{n}.bias" for i in range(12) for n in ("a", "b")]
    assert group_parameter_names(names) == ["h.{0..11}.a.bias", "h.{0..11}.b.bias"]
    assert group_parameter_names(["h.1.w", "h.3.w"]) == ["h.{1,3}.w"]
    assert group_parameter_names([f"s.{i}.b.{j}" for i in range(2) for j in range(3)]) == [
        "s.{0..1}.b.{0..2}"
    ]
    assert group_parameter_names(["s.0.b.0", "s.1.b.1"]) == ["s.0.b.0", "s.1.b.1"]
    assert group_parameter_names(["a", "b"]) == ["a", "b"]
    assert format_name_groups(list("abcdefgh")) == "a, b, c, d, e, f and 2 more"
    assert replace_numbers_with_placeholders("s.0.b.12.w") == "s.{i}.b.{j}.w"
    assert group_parameter_names(["x{}1y", "x{}2y"]) == ["x{}{1..2}y"]


def test_nearest_name_keeps_the_layer() -> None:
    names = [f"h.{i}.ln_1.weight" for i in range(12)]
    assert find_nearest_name("h.7.ln1.weight", names) == "h.7.ln_1.weight"
    assert find_nearest_name("something.else", names) is None


PAIRS = [
    ("l.{a}.mlp1.w", "l.{a}.mlp.1.w", "l.{i}.mlp1.w", "l.{i}.mlp.1.w"),
    ("l.{a}.w", "h.{a}.w", "l.{i}.w", "h.{i}.w"),
    ("l.{a}.w", "w", "l.{i}.w", "w"),
    ("enc2.l.{a}.w", "l.{a}.enc.2.w", "enc2.l.{i}.w", "l.{i}.enc.2.w"),
    ("l.{a}.e.{b}.w", "x.{b}.l.{a}.w", "l.{i}.e.{j}.w", "x.{j}.l.{i}.w"),
]
"""Names of parameters and tensors with two indices, and their patterns."""


@pytest.mark.parametrize(("name", "tensor", "pattern", "source"), PAIRS)
@pytest.mark.parametrize("layers", [2, 3])
def test_load_patterns_map_every_name(
    name: str, tensor: str, pattern: str, source: str, layers: int
) -> None:
    indices = [(a, b) for a in range(layers) for b in range(4)]
    pairs = [*dict.fromkeys((name.format(a=a, b=b), tensor.format(a=a, b=b)) for a, b in indices)]
    assert infer_name_patterns(pairs) == (pattern, source)
    for parameter, stored in pairs:
        captures = NamePattern(pattern).get_captures(parameter)
        assert captures is not None
        assert captures.fill_template(source) == stored


def test_single_name_keeps_numbers_inside_a_component() -> None:
    pairs = [("l.0.dense1.w", "h.0.fc1.w")]
    assert infer_name_patterns(pairs) == ("l.{i}.dense1.w", "h.{i}.fc1.w")


def test_unrelated_numbers_are_not_generalized() -> None:
    pairs = [("l.0.w", "h.4.w"), ("l.1.w", "h.9.w")]
    assert infer_name_patterns(pairs) == pairs[0]
