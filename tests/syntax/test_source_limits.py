"""Limits of source texts: the maximum is accepted, one more is an error with its code."""

import pytest

from specc.diagnostics.diagnostic import Source, SpeccError
from specc.syntax import ast
from specc.syntax.ast import flatten_binary_chain, walk_tree
from specc.syntax.dsl import dsl_lexer
from specc.syntax.dsl.dsl_parser import parse_dsl, parse_expression
from specc.syntax.dsl.expression_printer import format_expression
from specc.syntax.parse import decode_spec, parse_spec
from specc.syntax.yaml.yaml_parser import parse_yaml

HEAD = "specc 1\nmodel m\n"


def get_error_code(text: str, name: str = "a.specc") -> str:
    """Return the code of the first error, or an empty string."""
    try:
        parse_spec(Source(name, text))
    except SpeccError as failed:
        return failed.diagnostics[0].code
    return ""


def test_size_of_the_text() -> None:
    assert get_error_code(HEAD + "#" * (dsl_lexer.MAX_SPEC_BYTES - len(HEAD))) == ""
    assert get_error_code(HEAD + "#" * (dsl_lexer.MAX_SPEC_BYTES - len(HEAD) + 1)) == "E0109"
    with pytest.raises(SpeccError, match="E0109"):
        decode_spec(b"x" * (dsl_lexer.MAX_SPEC_BYTES + 1), "a.specc")


@pytest.mark.parametrize("pair", ["()", "[]"])
def test_brackets(pair: str) -> None:
    def nest(depth: int) -> str:
        return f"{HEAD}mask m = {pair[0] * depth}i{pair[1] * depth}\n"

    assert get_error_code(nest(dsl_lexer.MAX_NESTING)) == ""
    assert get_error_code(nest(dsl_lexer.MAX_NESTING + 1)) == "E0110"


def test_collections_of_yaml() -> None:
    def nest(depth: int) -> str:
        return (
            "specc: 1\nmodel: m\nconfig: {a: " + "[" * (depth - 2) + "1" + "]" * (depth - 2) + "}\n"
        )

    assert get_error_code(nest(dsl_lexer.MAX_NESTING), "a.yaml") == ""
    assert get_error_code(nest(dsl_lexer.MAX_NESTING + 1), "a.yaml") == "E0110"


def test_signs_without_brackets() -> None:
    assert get_error_code(f"{HEAD}mask m = {'-' * dsl_lexer.MAX_EXPRESSION_DEPTH}i\n") == ""
    assert (
        get_error_code(f"{HEAD}mask m = {'-' * (dsl_lexer.MAX_EXPRESSION_DEPTH + 1)}i\n") == "E0110"
    )


def test_tokens_of_an_expression() -> None:
    terms = dsl_lexer.MAX_EXPRESSION_TOKENS // 2
    sum_of_all = parse_expression("i" + " + i" * (terms - 1))
    assert isinstance(sum_of_all, ast.BinaryOp)
    first, operations = flatten_binary_chain(sum_of_all)
    assert isinstance(first, ast.Name)
    assert len(operations) == terms - 1
    assert format_expression(sum_of_all) == "i" + " + i" * (terms - 1)
    assert sum(1 for _ in walk_tree(sum_of_all)) == 2 * terms - 1
    with pytest.raises(SpeccError, match="E0111"):
        parse_expression("i" + " + i" * terms)


def test_whole_numbers() -> None:
    assert get_error_code(f"{HEAD}config {{ a = {2**53 - 1} }}\n") == ""
    assert get_error_code(f"{HEAD}config {{ a = {2**53} }}\n") == "E0108"
    assert get_error_code(f"{HEAD}config {{ a = {'9' * 5000} }}\n") == "E0108"


def test_at_most_twenty_errors_are_shown() -> None:
    with pytest.raises(SpeccError) as failed:
        parse_dsl(Source("a", HEAD + "mask )\n" * 25))
    assert len(failed.value.diagnostics) == dsl_lexer.MAX_REPORTED_ERRORS
    assert failed.value.diagnostics[-1].notes == ("5 more errors are not shown",)


def test_all_yaml_errors_are_shown() -> None:
    with pytest.raises(SpeccError) as failed:
        parse_yaml(
            Source("a", "specc: 1\nmodel: m\nconfig: {a: $, b: 'x +', 1: 2}\ndims: [1]\nfoo: 1\n")
        )
    assert [d.code for d in failed.value.diagnostics] == [
        "E0106",
        "E0101",
        "E0101",
        "E0101",
        "E0201",
    ]
