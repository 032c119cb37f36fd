"""Calls: of blocks, of words, of definitions, of things handed over to be applied."""

from collections.abc import Sequence
from dataclasses import replace

from specc.elaborate.application import Application
from specc.elaborate.arguments import argument
from specc.elaborate.blocks import call_block
from specc.elaborate.callees import callee
from specc.elaborate.context import Context, Env
from specc.elaborate.definitions import hold_definition
from specc.elaborate.expressions import evaluate, plain
from specc.elaborate.kinds import APPLIED
from specc.elaborate.lookup import FIXED
from specc.elaborate.names import weight_path
from specc.elaborate.values import (
    BlockFunction,
    DefinitionFunction,
    Evaluated,
    Function,
    Known,
    WordFunction,
    describe,
)
from specc.elaborate.vocabulary.registry import MISSING
from specc.elaborate.word_calls import call_word, no_option
from specc.lang import tree
from specc.text.diagnostic import fail


def call(context: Context, expr: tree.Call, env: Env) -> Evaluated:
    """The value of `f(args, options) @ weights`."""
    target = callee(context, expr.function, env)
    if isinstance(target, DefinitionFunction):
        return hold_definition(context, target, expr, env)
    if isinstance(target, WordFunction) and target.name == "apply":
        return _apply(context, expr, env)
    return _run(context, target, expr, expr.args, env)


def _apply(context: Context, expr: tree.Call, env: Env) -> Evaluated:
    """`apply(f, x, …)`: what `f` stands for, of these arguments."""
    if not expr.args:
        fail("E0211", "`apply` needs something to apply", expr.span)
    what = "the first argument of `apply`"
    target = argument(context, expr.args[0], (APPLIED,), what, env)
    assert isinstance(target, Function)  # or `argument` had refused it
    return _run(context, target, expr, expr.args[1:], env)


def _run(
    context: Context,
    target: Function,
    expr: tree.Call,
    args: Sequence[tree.Expr],
    env: Env,
) -> Evaluated:
    inner = env
    if isinstance(target, BlockFunction) and target.base is not None:
        inner = replace(env, scope=target.base)
    # the weights of what is applied first: `apply(f @ a, x) @ b` has them at `a.b`
    if target.weights:
        inner = inner.under(weight_path(context, target.weights, target.env or env))
    if expr.weights:
        inner = inner.under(weight_path(context, expr.weights, env))
    application = Application(
        target=target, expr=expr, args=args, caller=env, inner=inner
    )
    match target:
        case WordFunction():
            return call_word(context, target, application)
        case BlockFunction():
            return call_block(context, target, application)
    options = {"bias": "add", "normalizer": "normalize"}
    option = options.get(target.kind, target.kind)
    fail(
        "E0205",
        f"{describe(target)} is not applied to tensors",
        expr.span,
        helps=[f"give it to `attend` or `attend_by`, as `{option}=`"],
    )


def held(context: Context, expr: tree.Expr, env: Env) -> Evaluated:
    """An expression that names something to apply later: `layer_norm(eps=1e-5)`, `gelu`, `none`."""
    match expr:
        case tree.Choice():
            taken = evaluate(context, expr.condition, env)
            return held(context, expr.then if taken else expr.otherwise, env)
        case tree.Name(path=path) if path in FIXED:
            return FIXED[path]
        case tree.Call():
            target = callee(context, expr.function, env)
            if isinstance(target, DefinitionFunction):
                return hold_definition(context, target, expr, env)
            return hold(context, target, expr, env)
    return plain(context, expr, env)


def hold(
    context: Context, target: WordFunction | BlockFunction, expr: tree.Call, env: Env
) -> Evaluated:
    """A block or word with some options given."""
    if isinstance(target, WordFunction):
        slots = target.word.slots
        if not any(s.positional and s.default is MISSING for s in slots):
            return call(context, expr, env)  # `rope(theta=…)` waits for no input
        values = _options_of_word(context, target, expr, env)
        _options_only(target, expr)
        return replace(target, given=values, weights=expr.weights, env=env)
    # what a block's options mean its declared types say, when it is called
    late = {**target.given, **{o.name: (o, env) for o in expr.options}}
    _options_only(target, expr)
    return replace(target, given=late, weights=expr.weights, env=target.env)


def _options_of_word(
    context: Context, target: WordFunction, expr: tree.Call, env: Env
) -> dict[str, Known]:
    """The options given so far, with those of this call."""
    word = target.word
    by_name = {s.name: s for s in word.slots}
    values = dict(target.given)
    for option in expr.options:
        if option.name not in by_name:
            no_option(word.name, option, by_name)
        kinds = by_name[option.name].kinds
        what = f"`{option.name}` of `{word.name}`"
        values[option.name] = argument(context, option.value, kinds, what, env)
    return values


def _options_only(target: Function, expr: tree.Call) -> None:
    if expr.args:
        title = f"`{target.name}` is to be applied later: give it options only"
        fail("E0211", title, expr.args[0].span)
