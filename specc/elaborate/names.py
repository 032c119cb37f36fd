"""Weight names: `model.layers.{i}` with what stands in braces filled in."""

import re
from collections.abc import Iterable
from functools import lru_cache

from specc.elaborate.context import Context, Env
from specc.elaborate.needs import NeedsValue
from specc.elaborate.values import Picked, describe, first
from specc.ir.dim import Dim
from specc.lang import tree
from specc.lang.dsl.parse import parse_expression
from specc.text.diagnostic import fail
from specc.text.source import Source, Span


def say_shared(
    context: Context, items: Iterable[tree.Item], env: Env, *, lent: bool = False
) -> None:
    """Take note of every `share` of these items that holds, its path below the scope of
    `env`. Those that are `lent` are of a used spec, which may need them elsewhere.
    """
    for item in items:
        for rule in item.rules if isinstance(item, tree.Weights) else ():
            if isinstance(rule, tree.Share):
                condition = rule.condition
                if (
                    condition is None
                    or first(context.evaluator.evaluate(context, condition, env))
                    is True
                ):
                    context.sharing.say(rule.name.text, env.scope, lent=lent)


LONGEST = 10_000
"""Characters of a text whose holes are filled."""
PARSING = 20
"""Steps that reading what stands in a hole takes, and one more for each of its characters."""
HOLE = re.compile(r"\{([^{}]*)\}")
NAMED = re.compile(r"\{([A-Za-z_][^{}]*)\}")
PLAIN = re.compile(r"[^\x00-\x20\x7f{}]*")


def weight_path(context: Context, name: tree.WeightName, env: Env) -> str:
    """The path with every `{…}` replaced by the value of what it holds. E0521 where
    that makes no name.
    """
    path = filled(context, name.text, env, name.span, HOLE)
    if not PLAIN.fullmatch(path):
        fail("E0521", f"`{path}` cannot be the name of a weight", name.span)
    return path


def filled(
    context: Context,
    text: str,
    env: Env,
    span: Span | None,
    holes: "re.Pattern[str]" = NAMED,
) -> str:
    """A text with every hole `{…}` replaced by the value of what it holds: a number, a
    text, a word.

    In texts that are not weight names a hole begins with a letter; other braces stand
    for themselves.
    """

    def fill(hole: "re.Match[str]") -> str:
        inner = hole.group(1).strip()
        # a layer's names are filled once a turn: their text is parsed once
        if inner not in context.holes:
            context.work(span, PARSING + len(inner))
            context.holes[inner] = parse_expression(Source("<weight name>", inner))
        value = first(context.evaluator.evaluate(context, context.holes[inner], env))
        # no floats: `0.1` in a name of a file would be a guess at how it is written
        match value:
            case Dim() if value.number is not None:
                return str(value.number)
            case str(text):
                return text
            case Picked(word):
                return word
        if isinstance(value, Dim):
            raise NeedsValue(value.symbols(), span)
        fail(
            "E0521",
            f"`{{{inner}}}` in a name is {describe(value)}, not a whole number or a text",
            span,
        )

    made = holes.sub(fill, text) if "{" in text else text
    if len(made) > LONGEST:
        fail(
            "E0521",
            f"a text of {len(made)} characters; at most {LONGEST} can be made",
            span,
        )
    return made


@lru_cache(maxsize=512)
def _parsed(inner: str) -> tree.Expr:
    """What stands in a hole. The same few are read for every trial of a spec."""
    return parse_expression(Source("<weight name>", inner))
