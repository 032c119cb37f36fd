"""Values that do not have the declared tensor type: the help names an expression that has it."""

import re
from collections.abc import Sequence

import pytest

from specc.diagnostics.diagnostic import Diagnostic, Source, SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec

SPEC = """specc 1
model m
config {{ d: int = 8  act: activation = gelu  sizes: list[int] = [1, 2] }}
dims batch, n
graph g(x: float[batch, n], ids: int[batch, n], y: {type} = {value}) -> (r: float[batch, n]) {{
  return x * float(d)
}}
"""
TYPES = ("float[batch, n]", "int[batch, n]", "bool[batch, n]", "keep[batch, n]", "float[n, 3]")
VALUES = ("1", "0", "2.5", "true", "false", "none", "d", '"ids"', "sizes")


def check(value: str, type_text: str) -> Sequence[Diagnostic]:
    text = SPEC.format(type=type_text, value=value)
    try:
        elaborate_spec(open_spec(Source("m.specc", text)))
    except SpeccError as failed:
        return failed.diagnostics
    return ()


@pytest.mark.parametrize("type_text", TYPES)
@pytest.mark.parametrize("value", VALUES)
def test_advised_expression_has_the_declared_type(value: str, type_text: str) -> None:
    (diagnostic,) = check(value, type_text)
    assert diagnostic.code == "E0203"
    (advised,) = re.findall("`(.*)`", diagnostic.helps[0])
    if value != '"ids"' or type_text == "int[batch, n]":
        assert not check(advised, type_text)


@pytest.mark.parametrize("type_text", TYPES[:4])
@pytest.mark.parametrize("value", ["x", "ids", "x > 0.0"])
def test_advised_conversion_has_the_declared_type(value: str, type_text: str) -> None:
    for diagnostic in check(value, type_text):
        assert diagnostic.code == "E0301"
        (advised,) = re.findall("`(.*)`", diagnostic.helps[0])
        # the help names `x` if the operand has no name
        operand = value if value.isidentifier() else f"({value})"
        assert not check(re.sub(r"\bx\b", operand, advised), type_text)


@pytest.mark.parametrize(
    ("value", "help_"), [("causal", "arguments of attention"), ("act", "call"), ("[x, x]", "stack")]
)
def test_functions_and_lists_are_explained(value: str, help_: str) -> None:
    (diagnostic,) = check(value, "float[batch, n]")
    assert help_ in diagnostic.helps[0]


def test_single_item_for_a_list_is_put_in_brackets() -> None:
    text = SPEC.format(type="float[batch, n]", value="x").replace("[1, 2]", "3")
    with pytest.raises(SpeccError) as failed:
        elaborate_spec(open_spec(Source("m.specc", text)))
    (diagnostic,) = failed.value.diagnostics
    assert diagnostic.code == "E0203"
    assert diagnostic.helps == ("write a single item in brackets: `[…]`",)
