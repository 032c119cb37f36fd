"""Each limit of the text: what is just inside it is read, one more is refused with its code."""

import pytest

from specc.lang import limits, tree
from specc.lang.dsl.parse import parse_dsl, parse_expression
from specc.lang.dsl.write_expression import one_line
from specc.lang.read import decode, read
from specc.lang.walk import chain, walk
from specc.lang.yaml.read import parse_yaml
from specc.text.diagnostic import Failed
from specc.text.source import Source

HEAD = "specc 1\nmodel m\n"


def code(text: str, name: str = "a.specc") -> str:
    """The code of the first fault, or an empty text."""
    try:
        read(Source(name, text))
    except Failed as failed:
        return failed.diagnostics[0].code
    return ""


def test_size_of_the_text() -> None:
    assert code(HEAD + "#" * (limits.TEXT - len(HEAD))) == ""
    assert code(HEAD + "#" * (limits.TEXT - len(HEAD) + 1)) == "E0109"
    with pytest.raises(Failed, match="E0109"):
        decode(b"x" * (limits.TEXT + 1), "a.specc")


@pytest.mark.parametrize("pair", ["()", "[]"])
def test_brackets(pair: str) -> None:
    def nested(depth: int) -> str:
        return f"{HEAD}mask m = {pair[0] * depth}i{pair[1] * depth}\n"

    assert code(nested(limits.NESTING)) == ""
    assert code(nested(limits.NESTING + 1)) == "E0110"


def test_collections_of_yaml() -> None:
    def nested(depth: int) -> str:
        return (
            "specc: 1\nmodel: m\nconfig: {a: "
            + "[" * (depth - 2)
            + "1"
            + "]" * (depth - 2)
            + "}\n"
        )

    assert code(nested(limits.NESTING), "a.yaml") == ""
    assert code(nested(limits.NESTING + 1), "a.yaml") == "E0110"


def test_signs_without_brackets() -> None:
    assert code(f"{HEAD}mask m = {'-' * limits.HEIGHT}i\n") == ""
    assert code(f"{HEAD}mask m = {'-' * (limits.HEIGHT + 1)}i\n") == "E0110"


def test_words_of_an_expression() -> None:
    terms = limits.TOKENS // 2
    sum_of_all = parse_expression("i" + " + i" * (terms - 1))
    assert isinstance(sum_of_all, tree.Binary)
    first, operations = chain(sum_of_all)
    assert isinstance(first, tree.Name)
    assert len(operations) == terms - 1
    assert one_line(sum_of_all) == "i" + " + i" * (terms - 1)
    assert sum(1 for _ in walk(sum_of_all)) == 2 * terms - 1
    with pytest.raises(Failed, match="E0111"):
        parse_expression("i" + " + i" * terms)


def test_whole_numbers() -> None:
    assert code(f"{HEAD}config {{ a = {2**53 - 1} }}\n") == ""
    assert code(f"{HEAD}config {{ a = {2**53} }}\n") == "E0108"
    assert code(f"{HEAD}config {{ a = {'9' * 5000} }}\n") == "E0108"


def test_at_most_twenty_faults_are_shown() -> None:
    with pytest.raises(Failed) as failed:
        parse_dsl(Source("a", HEAD + "mask )\n" * 25))
    assert len(failed.value.diagnostics) == limits.REPORTED
    assert failed.value.diagnostics[-1].notes == ("5 more errors are not shown",)


def test_faults_in_yaml_are_all_shown() -> None:
    with pytest.raises(Failed) as failed:
        parse_yaml(
            Source(
                "a",
                "specc: 1\nmodel: m\nconfig: {a: $, b: 'x +', 1: 2}\ndims: [1]\nfoo: 1\n",
            )
        )
    assert [d.code for d in failed.value.diagnostics] == [
        "E0106",
        "E0101",
        "E0101",
        "E0101",
        "E0201",
    ]
