"""The shipped LALR table equals the grammar's, the grammar has no conflict, and the parser agrees
with lark."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from lark import Lark, Token, Tree
from lark.exceptions import LarkError

from docs.generators import lalr_table
from specc.diagnostics.diagnostic import Source, SpeccError
from specc.syntax.dsl.dsl_lexer import SourceFragment, tokenize_fragment
from specc.syntax.dsl.dsl_parser import find_expected_tokens, parse_dsl
from specc.syntax.dsl.grammar_callbacks import RULE_CALLBACKS, NodeRuleCallback
from specc.syntax.dsl.lalr import LalrRule, load_lalr_table

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.specc"))


LARK = pytest.mark.parity
"""Building the parser of lark takes seconds."""


@pytest.fixture(scope="module")
def lark() -> Lark:
    return lalr_table.load_grammar()


@LARK
def test_table_is_current() -> None:
    assert (
        lalr_table.GRAMMAR_DIRECTORY / "grammar.json"
    ).read_text() == lalr_table.render_grammar_json(), "run `python -m docs.generators.lalr_table`"


def test_strict_mode_finds_conflicts() -> None:
    with pytest.raises(LarkError):
        Lark("start: a | b\na: X\nb: X\nX: /x/", parser="lalr", strict=True)


def test_every_rule_has_a_callback() -> None:
    inline = {
        r.callback
        for r in load_lalr_table().rules
        if not (r.origin.startswith("_") or r.inlines_single_child)
    }
    assert inline <= set(RULE_CALLBACKS), sorted(inline - set(RULE_CALLBACKS))
    assert set(RULE_CALLBACKS) <= {r.callback for r in load_lalr_table().rules}


@LARK
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_reductions_equal_lark(path: Path, lark: Lark, monkeypatch: pytest.MonkeyPatch) -> None:
    text = path.read_text(encoding="utf-8")
    seen: list[tuple[str, int]] = []
    from specc.syntax.dsl import lalr

    value = lalr.LalrParser.build_value

    def record_reduction(
        self: lalr.LalrParser, rule: LalrRule, parts: list[lalr.StackEntry]
    ) -> lalr.StackEntry:
        whole = value(self, rule, parts)
        if not rule.origin.startswith("_") and not (rule.inlines_single_child and rule.length == 1):
            seen.append((rule.callback, whole.last_token - whole.first_token + 1))
        return whole

    monkeypatch.setattr(lalr.LalrParser, "build_value", record_reduction)
    parse_dsl(Source(path.name, text))
    theirs = [
        node.data
        for node in lark.parse(text, start="file").iter_subtrees()
        if isinstance(node, Tree)
    ]
    assert sorted(name for name, _ in seen) == sorted(map(str, theirs))
    assert Token is not None


@LARK
@pytest.mark.parametrize(
    "text", ["specc 1 model m mask a = i +", "specc 1 model", "specc 1 model m block f() {}"]
)
def test_syntax_errors_equal_lark(text: str, lark: Lark) -> None:
    with pytest.raises(LarkError):
        lark.parse(text, start="file")
    with pytest.raises(SpeccError):
        parse_dsl(Source("a", text))


def test_parser_imports_neither_lark_nor_yaml() -> None:
    code = (
        "import sys, specc.syntax.dsl.dsl_parser; print([m for m in ('lark', 'yaml', "
        "'pickle') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=lalr_table.GRAMMAR_DIRECTORY.parents[1],
    )
    assert done.stdout == "[]\n"


def test_callback_signatures_match_their_rules() -> None:
    """A repetition may be empty; the children after it are in `*rest` too."""
    for r in load_lalr_table().rules:
        if r.origin.startswith("_") or (r.inlines_single_child and r.length == 1):
            continue
        callback = RULE_CALLBACKS[r.callback]
        parameters = list(inspect.signature(callback).parameters.values())
        plain = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD][2:]
        rest = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        if isinstance(callback, NodeRuleCallback):
            plain, rest = (
                parameters[:1] * len(callback.fields),
                bool(callback.rest_field or callback.body_field),
            )
        repeated = any(n is not None and n < 0 for n in r.children)
        least = sum(n is None or n >= 0 for n in r.children)
        what = f"{r.callback}: {r.children} for {parameters}"
        assert len(plain) == least or (rest and len(plain) <= least), what
        assert rest or not repeated, what


@LARK
@pytest.mark.parametrize("path", EXAMPLES[:3], ids=lambda p: p.stem)
def test_expected_tokens_equal_lark(path: Path, lark: Lark) -> None:
    text = path.read_text(encoding="utf-8")
    tokens = tokenize_fragment(
        SourceFragment.from_source(Source(path.name, text)), load_lalr_table().keywords
    ).tokens[:-1]
    theirs = lark.parse_interactive("", start="file")
    for n, token in enumerate(tokens):
        if n % 7 == 0:  # each position takes lark some milliseconds
            ours = find_expected_tokens(text, token.start)
            assert ours is not None
            assert ours.terminals == theirs.accepts(), text[: token.start][-60:]
        theirs.feed_token(Token(token.kind, token.text))
