"""YAML scalars: quoting never changes a value, and positions inside a scalar are positions in the
file."""

import pytest

from specc.diagnostics.diagnostic import Source
from specc.syntax import ast
from specc.syntax.dsl.dsl_parser import parse_dsl
from specc.syntax.yaml.yaml_parser import parse_yaml

HEAD = "specc: 1\nmodel: m\n"


def parse_config_value(text: str) -> ast.Expr:
    """Return the parsed config value `a`."""
    config = parse_yaml(Source("a.yaml", f"{HEAD}config:\n  a: {text}\n")).items[0]
    assert isinstance(config, ast.ConfigSection)
    entry = config.entries[0]
    assert isinstance(entry, ast.ConfigOverride)
    return entry.value


@pytest.mark.parametrize("text", ["1e-5", "'1e-5'", '"1e-5"', "1\\x65-5", ">-\n    1e-5"])
def test_numbers_keep_their_text(text: str) -> None:
    given = f'"{text}"' if "\\" in text else text
    assert parse_config_value(given) == ast.NumberLiteral("1e-5")


def test_dates_are_expressions() -> None:
    assert parse_config_value("2001 - 1 - 1") == parse_config_value("'2001 - 1 - 1'")


@pytest.mark.parametrize(
    "text", ["causal & window(128)", "'causal & window(128)'", '"causal \\x26 window(128)"']
)
def test_spans_of_nodes(text: str) -> None:
    expr = parse_config_value(text)
    assert isinstance(expr, ast.BinaryOp)
    call = expr.right
    assert isinstance(call, ast.Call)
    assert call.span is not None
    assert call.span.text == "window(128)"
    assert call.args[0].span is not None
    assert call.args[0].span.text == "128"
    assert expr.left.span is not None
    assert expr.left.span.text == "causal"


def test_spans_after_supplementary_characters() -> None:
    text = f"# \U0001f600 é\n{HEAD}doc: '\U0001f600'\nconfig: {{a: left + right}}\n"
    config = parse_yaml(Source("a.yaml", text)).items[0]
    assert isinstance(config, ast.ConfigSection)
    entry = config.entries[0]
    assert isinstance(entry, ast.ConfigOverride)
    assert isinstance(entry.value, ast.BinaryOp)
    assert entry.value.right.span is not None
    assert entry.value.right.span.text == "right"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("in: [a, b]", "f(a, b)"),
        ("in: '[a, b]'", "f(a, b)"),
        ("in: a", "f(a)"),
        ("in: [[a, b]]", "f([a, b])"),
        ("in: ['[a, b]']", "f([a, b])"),
        ("in: [a, b], out: [c]", "f(a, b, out=[c])"),
        ("in: {g: {in: a, weights: q}}, weights: 'h.{i}'", 'f(g(a) @ q) @ "h.{i}"'),
        ("", "f()"),
    ],
)
def test_inputs_of_a_call(given: str, meant: str) -> None:
    yaml = parse_yaml(Source("a", f"{HEAD}items:\n  - mask: m\n    is: {{f: {{{given}}}}}\n"))
    assert yaml == parse_dsl(Source("a", f"specc 1 model m mask m = {meant}"))


def test_values_of_return() -> None:
    def parse_return(text: str) -> ast.File:
        return parse_yaml(
            Source(
                "a", f"{HEAD}items:\n  - block: f\n    out: float\n    do: [{{return: {text}}}]\n"
            )
        )

    assert parse_return("[a, b]") == parse_return("'[a, b]'")
    assert parse_return("[a, b]") != parse_return("[[a, b]]")
    assert parse_return("[a]") == parse_return("a")


def test_order_of_top_level_keys() -> None:
    file = parse_yaml(
        Source(
            "a",
            f"{HEAD}dims: [n]\nconfig: {{a: 1}}\nitems:\n  - {{mask: m, is: j <= "
            "i}\nrequire: [a > 0]\n",
        )
    )
    kinds = [ast.DimsSection, ast.ConfigSection, ast.AttentionDef, ast.RequireStatement]
    assert [type(i) for i in file.items] == kinds
