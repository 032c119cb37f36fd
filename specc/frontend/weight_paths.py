"""Resolve weight paths such as `model.layers.{i}`: fill their placeholders (E0521)."""

import re
from collections.abc import Iterable

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Source, Span
from specc.frontend.context import Context, Env
from specc.frontend.spec_values import ChoiceValue, NeedsValue, describe_value
from specc.ir.dim import Dim
from specc.syntax import ast
from specc.syntax.dsl.dsl_parser import parse_expression


def register_share_rules(
    context: Context, items: Iterable[ast.Item], env: Env, *, from_used_spec: bool = False
) -> None:
    """Register the `share` rules of these items whose conditions are true, with paths below the
    scope of `env`. Rules `from_used_spec` may be unused: the file may need them elsewhere.
    """
    for item in items:
        for rule in item.rules if isinstance(item, ast.Weights) else ():
            if not isinstance(rule, ast.Share):
                continue
            condition = rule.condition
            if condition is None or context.evaluate_value(condition, env) is True:
                context.weights.sharing.add_share_rule(
                    rule.name.text, env.scope, from_used_spec=from_used_spec
                )


MAX_PATH_LENGTH = 10_000
"""Maximum number of characters of a weight path with placeholders."""
PARSE_COST = 20
"""Steps for parsing a placeholder, plus one per character."""
PLACEHOLDER_PATTERN = re.compile(r"\{([^{}]*)\}")
NAMED_PLACEHOLDER_PATTERN = re.compile(r"\{([A-Za-z_][^{}]*)\}")
VALID_PATH = re.compile(r"[^\x00-\x20\x7f{}]*")


def resolve_weight_path(context: Context, name: ast.WeightName, env: Env) -> str:
    """Replace every `{…}` in a weight path by its value. Raise E0521 if the result is not a valid
    name.
    """
    path = fill_placeholders(context, name.text, env, name.span, PLACEHOLDER_PATTERN)
    if not VALID_PATH.fullmatch(path):
        raise_error("E0521", f"`{path}` cannot be the name of a weight", name.span)
    return path


def fill_placeholders(
    context: Context,
    text: str,
    env: Env,
    span: Span | None,
    pattern: "re.Pattern[str]" = NAMED_PLACEHOLDER_PATTERN,
) -> str:
    """Replace every `{…}` in a string by its value: a number, a string or a choice. Outside of
    weight names a placeholder begins with a letter; other braces are literal.
    """

    def format_placeholder(match: "re.Match[str]") -> str:
        inner = match.group(1).strip()
        # parsed once, although each iteration of a loop formats it
        if inner not in context.weights.placeholders:
            context.count_steps(span, PARSE_COST + len(inner))
            context.weights.placeholders[inner] = parse_expression(Source("<weight name>", inner))
        value = context.evaluate_value(context.weights.placeholders[inner], env)
        # floats are rejected: their format in the checkpoint's names is unknown
        match value:
            case Dim() if value.number is not None:
                return str(value.number)
            case str(text):
                return text
            case ChoiceValue(word):
                return word
        if isinstance(value, Dim):
            raise NeedsValue(value.symbols(), span)
        raise_error(
            "E0521",
            f"`{{{inner}}}` in a name is {describe_value(value)}, not an integer or a string",
            span,
        )

    filled = pattern.sub(format_placeholder, text) if "{" in text else text
    if len(filled) > MAX_PATH_LENGTH:
        title = f"a string of {len(filled)} characters; the limit is {MAX_PATH_LENGTH}"
        raise_error("E0521", title, span)
    return filled
