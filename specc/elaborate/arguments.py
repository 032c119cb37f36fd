"""Arguments of words: expressions made to fit what a parameter takes."""

from specc.elaborate.context import Context, Env
from specc.elaborate.expressions import decided, plain
from specc.elaborate.kinds import (
    ANYTHING,
    APPLIED,
    FLOAT,
    NORMALIZER,
    NUMBER,
    TENSOR,
    TEXT,
    Kinds,
    Several,
    fit,
    words_of,
)
from specc.elaborate.lookup import lookup
from specc.elaborate.normalizers import normalizer
from specc.elaborate.numbers import attribute
from specc.elaborate.values import POISON, Known, Number, Tensor, Unknown, first
from specc.lang import tree
from specc.text.diagnostic import Failed, fail
from specc.text.source import Span
from specc.text.suggest import suggest


def argument(
    context: Context, expr: tree.Expr, kinds: Kinds, what: str, env: Env
) -> Known:
    """The value of an argument where these kinds are expected: bare words, and calls
    that are to be held, not made.
    """
    if words_of(kinds):
        expr = decided(context, expr, env)  # `half if old else interleaved`
    if isinstance(expr, tree.Name) and (word := _word(context, expr, kinds, what, env)):
        return word
    if NORMALIZER in kinds:
        value = first(normalizer(context, expr, env))
    elif APPLIED in kinds:
        value = first(context.evaluator.held(context, expr, env))
    else:
        value = plain(context, expr, env)
    # reported; an empty `Failed` says no more
    if value is POISON:
        raise Failed
    if isinstance(value, Tensor) and TENSOR in kinds:
        return value
    if isinstance(value, Unknown) and not {FLOAT, NUMBER, ANYTHING} & {*kinds}:
        # where a whole number is due, one that only an input tells has its own fault
        attribute(context, value, what, expr.span)
    return _settled(context, fit(value, kinds, what, expr.span), kinds, what, expr.span)


def _word(
    context: Context, name: tree.Name, kinds: Kinds, what: str, env: Env
) -> str | None:
    """`half` in `pairs=half`: a bare word, where the parameter has words and no variable
    is called so. None for a name that stands for something else.
    """
    words = words_of(kinds)
    if not words:
        return None
    if name.path in words and name.path not in env.names:
        return name.path
    # a parameter that takes any text as well cannot know a misspelled word
    if TEXT not in kinds and lookup(context, name, env, quiet=True) is POISON:
        helps = suggest(name.path, words, f"it is one of {', '.join(words)}")
        fail("E0203", f"{what} cannot be `{name.path}`", name.span, helps=helps)
    return None


def _settled(
    context: Context, value: Known, kinds: Kinds, what: str, span: Span | None
) -> Known:
    """A number that an operation is made with is known, or a config value that is still
    a symbol.
    """
    if isinstance(value, tuple) and kinds[:1] == (Several(FLOAT),):
        return tuple(
            attribute(context, v, what, span) if isinstance(v, Number) else v
            for v in value
        )
    if FLOAT in kinds and isinstance(value, Number):
        return attribute(context, value, what, span)
    return value
