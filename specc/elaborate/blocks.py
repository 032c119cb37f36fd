"""Calls of blocks: parameters bound, the body run, results checked against what the
block declares.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from specc.elaborate.application import Application
from specc.elaborate.batching import Given, broadcast_batch
from specc.elaborate.blame import entered
from specc.elaborate.context import NOTHING, Context, Env, Module, Poisoned
from specc.elaborate.expressions import decided
from specc.elaborate.foreign import option_meant
from specc.elaborate.names import say_shared
from specc.elaborate.normalizers import of_type
from specc.elaborate.noted import note
from specc.elaborate.statements import Returned, run_body
from specc.elaborate.typing import Place, fit_static, is_tensor, match_tensor
from specc.elaborate.values import (
    POISON,
    BlockFunction,
    Evaluated,
    Known,
    Picked,
    Results,
    first,
)
from specc.ir.dim import Dim
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed, fail
from specc.text.suggest import suggestion

DEEPEST = 64
"""Blocks that run inside each other."""

Bound: TypeAlias = dict[str, tuple[tree.Param, tree.Expr, Env]]
"""Parameters by name, with what each is given and where that is evaluated."""


def call_block(
    context: Context,
    target: BlockFunction,
    call: Application,
) -> Results:
    """The results of a block for these arguments, its weights under the scope of
    `call.inner`.
    """
    block, module, caller = target.block, target.module, call.caller
    foreign = module.root is not caller.module.root and not module.standard
    at = call.expr.span if foreign else None
    config = _config(context, target, call)
    env = _inside(target, call, config)
    context.evaluator.expect(context.steps, block, module, config, call.expr.span)
    bind(context, block, _arguments(target, call), env)
    enter(context, block, call.expr)
    try:
        with (
            context.called(call.expr.span, standard=module.standard),
            context.sharing.step(call.expr, call.own_scope),
            entered(context, at, call.expr.function.path),
        ):
            if target.base is None and foreign:
                there = Env(module=module, config=config, scope=call.inner.scope)
                say_shared(context, module.file.items, there)
            complete(context, block, env, call.expr)
            results = finish(context, block, run_body(context, block.body, env), env)
        _name_results(context, results, env, caller)
        return results
    finally:
        context.calls.pop()
        context.scope = caller.scope


def _inside(
    target: BlockFunction, call: Application, config: Mapping[str, Known]
) -> Env:
    """What is in sight in the body of a block: its file's names and values."""
    module, caller, home = target.module, call.caller, target.env
    raw, base = caller.raw, caller.base
    if target.base is not None and home is not None:
        raw, base = home.raw, target.base
    elif module.root is not caller.module.root and not module.standard:
        # handed over by its own file, or called where a used one says its config
        handed = home is not None and home.module.root is module.root and home.config
        base = home.base if home is not None and handed else call.inner.scope
    return Env(
        module=module,
        config=config,
        scope=call.inner.scope,
        raw=raw,
        lengths=_lengths(module, caller),
        base=base,
    )


def _lengths(module: Module, caller: Env) -> dict[str, Dim] | None:
    """What the run-time lengths of a block's file stand for while it is called.

    In the same file, and in its instances, they are the caller's own, and std declares
    none. Those of a used file are bound by the tensors it is given: `batch` there may
    be `batch * 2` here.
    """
    if module.root is caller.module.root:
        return caller.lengths
    return None if module.standard else {}


def _arguments(target: BlockFunction, call: Application) -> Bound:
    """Each parameter that is given something: what, and where that is evaluated. What
    the call itself gives wins over options that were given before.
    """
    block = target.block
    given = _pair(block, call)
    bound: Bound = {p.name: (p, value, call.caller) for p, value in given}
    for name, (option, where) in target.given.items():
        param = next((p for p in block.params if p.name == name), None)
        if param is None:
            title = f"`{block.name}` has no option `{name}`"
            fail("E0201", title, call.expr.span)
        bound.setdefault(name, (param, option.value, where))
    return bound


def enter(context: Context, block: tree.Block, expr: tree.Call) -> None:
    """Note that a block is being run. E0210 if it runs already: specs have no recursion."""
    key = f"{block.name}@{block.name_span}"
    # by the place of its name too: two files may have blocks of one name
    if key in context.calls:
        cycle = [c.split("@")[0] for c in context.calls[context.calls.index(key) :]] + [
            block.name
        ]
        context.calls.append(key)
        fail(
            "E0210",
            f"`{block.name}` calls itself: {' → '.join(cycle)}",
            expr.span,
            helps=["use `repeat`"],
        )
    if len(context.calls) >= DEEPEST:
        context.calls.append(key)
        title = f"blocks call blocks more than {DEEPEST} deep"
        fail(
            "E0110",
            title,
            expr.span,
            f"`{block.name}` would be number {DEEPEST + 1}",
            helps=["call one after the other"],
        )
    context.calls.append(key)


def _config(
    context: Context, target: BlockFunction, call: Application
) -> Mapping[str, Known]:
    """The config values that a block sees: those of its file."""
    module, caller, home = target.module, call.caller, target.env
    option = next((o for o in call.options if o.name == "config"), None)
    if option is None:
        if module.root is caller.module.root:
            return caller.config
        # handed over by its own file: it keeps the values it was named with
        if home and home.module.root is module.root and home.config:
            return home.config
    if module.standard:
        return NOTHING
    if option is None:
        return context.evaluator.configure(context, module, None, None)
    given = first(context.evaluator.evaluate(context, option.value, caller))
    return context.evaluator.configure(context, module, given, option.value.span)


def _pair(block: tree.Block, call: Application) -> list[tuple[tree.Param, tree.Expr]]:
    """Each argument with the parameter it is for."""
    args = call.args
    options = [o for o in call.options if o.name != "config"]
    if len(args) > len(block.params):
        shown = ", ".join(p.name for p in block.params)
        title = (
            f"`{block.name}` takes {len(block.params)} inputs, {len(args)} are given"
        )
        fail(
            "E0211", title, args[len(block.params)].span, helps=[f"it takes ({shown})"]
        )
    found = list(zip(block.params, args, strict=False))
    by_name = {p.name: p for p in block.params}
    for option in options:
        at = option.name_span or option.span
        if option.name not in by_name:
            near = option_meant(option.name, by_name)
            takes = f"`{block.name}` takes: {', '.join(by_name)}"
            fail(
                "E0201",
                f"`{block.name}` has no option `{option.name}`",
                at,
                "unknown option",
                helps=[f"{suggestion(near)} {takes}" if near else takes],
            )
        if any(p.name == option.name for p, _ in found):
            fail("E0212", f"`{option.name}` is given twice", at)
        found.append((by_name[option.name], option.value))
    return found


def bind(context: Context, block: tree.Block, pairs: Bound, env: Env) -> None:
    """Give parameters the values of arguments: static ones first, then tensors. The
    caller is still outside.
    """
    faults: list[Diagnostic] = []
    poisoned = False
    # a tensor's declared type may name static parameters: `x: float[batch, width]`
    for tensors in (False, True):
        given: list[Given] = []
        for param, value, caller in pairs.values():
            if is_tensor(param.type) == tensors:
                try:
                    given.append(
                        (param, _evaluated(context, param, value, caller), value)
                    )
                except Failed as failed:
                    faults += failed.diagnostics
                except Poisoned:
                    poisoned = True
        for param, known, expr in broadcast_batch(context, given, env):
            try:
                _bind_one(context, block, param, known, expr, env)
                note(param.span, env.names[param.name])
            except Failed as failed:
                faults += failed.diagnostics
            except Poisoned:
                poisoned = True
    if faults:
        raise Failed(*faults)
    if poisoned:
        raise Poisoned


def complete(context: Context, block: tree.Block, env: Env, expr: tree.Call) -> None:
    """Give the other parameters their defaults, in order."""
    for param in block.params:
        # given; `bind` has evaluated it where the call stands, defaults stand in here
        if param.name in env.names:
            continue
        if param.default is None:
            if param.type.optional:
                env.names[param.name] = None
                continue
            what = "input" if is_tensor(param.type) else "option"
            helps = [f"`{block.name}` takes: {', '.join(p.name for p in block.params)}"]
            fail(
                "E0211",
                f"`{block.name}` needs the {what} `{param.name}`",
                expr.span,
                helps=helps,
            )
        value = _evaluated(context, param, param.default, env)
        _bind_one(context, block, param, value, param.default, env)


def _evaluated(
    context: Context, param: tree.Param, expr: tree.Expr, caller: Env
) -> Known:
    """The value of an argument; a word of a choice stands for itself."""
    words = param.type.names if param.type.name == "choice" else ()
    if words:
        expr = decided(context, expr, caller)  # `half if old else interleaved`
    if (
        isinstance(expr, tree.Name)
        and expr.path in words
        and expr.path not in caller.names
    ):
        return Picked(expr.path, words)
    return first(of_type(context, param.type, expr, caller))


def _bind_one(
    context: Context,
    block: tree.Block,
    param: tree.Param,
    value: Known,
    expr: tree.Expr,
    env: Env,
) -> None:
    what = f"`{param.name}` of `{block.name}`"
    place = Place(what, expr.span, block.name)
    words = param.type.names if param.type.name == "choice" else ()
    if isinstance(value, Picked) and value.word in words and value.words == words:
        env.names[param.name] = value
    elif value is None and param.type.optional:
        env.names[param.name] = None
    elif is_tensor(param.type):
        env.names[param.name] = match_tensor(context, param.type, value, env, place)
    elif param.type.name == "choice" and value is POISON:
        fail("E0203", f"{what} is one of {', '.join(param.type.names)}", expr.span)
    else:
        env.names[param.name] = fit_static(context, param.type, value, env, place)


def _returned(
    block: tree.Block, returned: Returned | None
) -> tuple[tree.Return, Sequence[Evaluated]]:
    """The `return` of a block and a value for each declared result. E0214 where there
    is no `return`, or another number of values.
    """
    if returned is None:
        names = ", ".join(p.name or "value" for p in block.results)
        fail(
            "E0214",
            f"`{block.name}` ends without `return`",
            block.name_span,
            "nothing comes out of this",
            helps=[f"end it with `return {names}`"],
        )
    statement, values = returned
    # `return attend(…)` hands all results of a call on
    if len(values) == 1 and isinstance(values[0], Results) and len(block.results) > 1:
        values = values[0].values
    wanted = len(block.results)
    if len(values) != wanted:
        declared = f"{wanted} result{'' if wanted == 1 else 's'}"
        title = f"`{block.name}` declares {declared} and returns {len(values)}"
        fail("E0214", title, statement.span)
    return statement, values


def finish(
    context: Context, block: tree.Block, returned: Returned | None, env: Env
) -> Results:
    """The declared results of a block, checked."""
    statement, values = _returned(block, returned)
    spans = [expr.span for expr in statement.values]
    if len(spans) != len(values):  # one expression that gives them all
        spans = [statement.span] * len(values)
    tensors = []
    for param, value, span in zip(block.results, values, spans, strict=True):
        what = f"the result `{param.name}`" if param.name else "the result"
        place = Place(what, span)
        tensors.append(match_tensor(context, param.type, first(value), env, place))
    return Results(tuple(tensors), tuple(p.name for p in block.results))


def _name_results(context: Context, results: Results, env: Env, caller: Env) -> None:
    """Remember what a scope gave, for taps: `a.b` is the first result, `a.b:weights` another."""
    if env.scope == caller.scope or not env.scope:
        return
    for n, (value, name) in enumerate(zip(results.values, results.names, strict=True)):
        # a scope by itself is its first result, which is what most taps ask for
        if n == 0:
            context.builder.names[env.scope] = value.value
        if name:
            context.builder.names[f"{env.scope}:{name}"] = value.value
