"""Calls of blocks: parameters bound, the body run, results checked against what the block declares."""

from collections.abc import Sequence
from typing import Any

from specc.elaborate.context import Context, Env, Poisoned
from specc.elaborate.names import say_shared
from specc.elaborate.statements import run_body
from specc.elaborate.typing import applied, fit_static, is_tensor, match_tensor
from specc.elaborate.values import POISON, Function, Picked, Results, Tensor, first
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed, fail
from specc.text.suggest import did_you_mean

DEEPEST = 64


def call_block(
    context: Context,
    target: Function,
    expr: tree.Call,
    args: Sequence[Any],
    options: Sequence[tree.Option],
    caller: Env,
    inner: Env,
) -> Any:
    """The results of a block for these arguments, its weights under the scope of `inner`."""
    block, module = target.target
    assert isinstance(block, tree.Block)
    config = _config(context, target, module, caller, options)
    lengths = caller.lengths if module is caller.module else None if module.standard else {}
    env = Env(module, config, scope=inner.scope, raw=caller.raw, lengths=lengths)
    given = _pair(block, args, [o for o in options if o.name != "config"], expr)
    pairs = {p.name: (p, value, caller) for p, value in given}
    for name, held in target.given.items():
        param = next((p for p in block.params if p.name == name), None)
        if param is None:
            fail("E0201", f"`{block.name}` has no option `{name}`", expr.span)
        option, where = held
        pairs.setdefault(name, (param, option.value, where))
    bind(context, block, pairs, env)
    enter(context, block, expr)
    try:
        with context.sharing.step(expr, own_scope(target, expr, inner)):
            if module is not caller.module and not module.standard:
                say_shared(context, module.file.items, Env(module, config, scope=inner.scope))
            complete(context, block, env, expr)
            results = finish(context, block, run_body(context, block.body, env), env)
        _name_results(context, results, env, caller)
        return results
    finally:
        context.calls.pop()


def own_scope(target: Function, expr: tree.Call, inner: Env) -> str:
    """The scope of weights that a call opens by `@`; empty where it has none."""
    return inner.scope if target.weights or expr.weights else ""


def enter(context: Context, block: tree.Block, expr: tree.Call) -> None:
    """Note that a block is being run. E0210 if it runs already: specs have no recursion."""
    key = f"{block.name}@{block.name_span}"
    if key in context.calls:
        cycle = [c.split("@")[0] for c in context.calls[context.calls.index(key) :]] + [block.name]
        context.calls.append(key)
        fail("E0210", f"`{block.name}` calls itself: {' → '.join(cycle)}", expr.span, helps=["use `repeat`"])
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


def _config(context: Context, target: Function, module: Any, caller: Env, options: Sequence[tree.Option]) -> Any:
    given = next((o for o in options if o.name == "config"), None)
    if module is caller.module and given is None:
        return caller.config
    if target.env and target.env.module is module and target.env.config and given is None:
        return target.env.config
    if module.standard:
        return {}
    from_ = first(context.evaluate(context, given.value, caller)) if given else None
    return context.configure(context, module, from_, given.value.span if given else None)


def _pair(
    block: tree.Block, args: Sequence[Any], options: Sequence[tree.Option], expr: tree.Call
) -> list[tuple[tree.Param, Any]]:
    if len(args) > len(block.params):
        shown = ", ".join(p.name for p in block.params)
        title = f"`{block.name}` takes {len(block.params)} inputs, {len(args)} are given"
        fail("E0211", title, args[len(block.params)].span, helps=[f"it takes ({shown})"])
    found = list(zip(block.params, args, strict=False))
    by_name = {p.name: p for p in block.params}
    for option in options:
        at = option.name_span or option.span
        if option.name not in by_name:
            near = did_you_mean(option.name, by_name)
            takes = f"`{block.name}` takes: {', '.join(by_name)}"
            fail(
                "E0201",
                f"`{block.name}` has no option `{option.name}`",
                at,
                "unknown option",
                helps=[f"did you mean `{near}`? {takes}" if near else takes],
            )
        if any(p.name == option.name for p, _ in found):
            fail("E0212", f"`{option.name}` is given twice", at)
        found.append((by_name[option.name], option.value))
    return found


def bind(context: Context, block: tree.Block, pairs: dict[str, Any], env: Env) -> None:
    """Give parameters the values of arguments: static ones first, then tensors. The caller is still outside."""
    faults: list[Diagnostic] = []
    poisoned = False
    for tensors in (False, True):
        for param, value, caller in pairs.values():
            if is_tensor(param.type) == tensors:
                try:
                    _bind_one(context, block, param, value, caller, env)
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
        if param.name in env.names:
            continue
        if param.default is None:
            if param.type.optional:
                env.names[param.name] = None
                continue
            what = "input" if is_tensor(param.type) else "option"
            helps = [f"`{block.name}` takes: {', '.join(p.name for p in block.params)}"]
            fail("E0211", f"`{block.name}` needs the {what} `{param.name}`", expr.span, helps=helps)
        _bind_one(context, block, param, param.default, env, env)


def _bind_one(context: Context, block: tree.Block, param: tree.Param, expr: Any, caller: Env, env: Env) -> None:
    what = f"`{param.name}` of `{block.name}`"
    words = param.type.names if param.type.name == "choice" else ()
    if isinstance(expr, tree.Name) and expr.path in words and expr.path not in caller.names:
        env.names[param.name] = Picked(expr.path, words)
        return
    value = context.held(context, expr, caller) if applied(param.type) else context.evaluate(context, expr, caller)
    value = first(value)
    if is_tensor(param.type):
        if value is None and (param.type.optional):
            env.names[param.name] = None
            return
        env.names[param.name] = match_tensor(context, param.type, value, env, expr.span, what)
    elif param.type.name == "choice" and value is POISON:
        fail("E0203", f"{what} is one of {', '.join(param.type.names)}", expr.span)
    else:
        env.names[param.name] = fit_static(context, value, param.type, what, expr.span, env)


def finish(context: Context, block: tree.Block, returned: Any, env: Env) -> Results:
    """The declared results of a block, checked."""
    if returned is None:
        names = ", ".join(p.name or "value" for p in block.results)
        helps = [f"end it with `return {names}`"]
        fail(
            "E0214", f"`{block.name}` ends without `return`", block.name_span, "nothing comes out of this", helps=helps
        )
    statement, values = returned
    if len(values) == 1 and isinstance(values[0], Results) and len(block.results) > 1:
        values = values[0].values
    if len(values) != len(block.results):
        declared = f"{len(block.results)} result{'s' if len(block.results) != 1 else ''}"
        title = f"`{block.name}` declares {declared} and returns {len(values)}"
        fail("E0214", title, statement.span)
    made = []
    for param, value, shown in zip(block.results, values, statement.values * len(values), strict=False):
        span = shown.span if len(statement.values) == len(values) else statement.span
        what = f"the result `{param.name}`" if param.name else "the result"
        made.append(match_tensor(context, param.type, first(value), env, span, what))
    return Results(tuple(made), tuple(p.name for p in block.results))


def _name_results(context: Context, results: Results, env: Env, caller: Env) -> None:
    """Remember what a scope gave, for taps: `a.b` is the first result, `a.b:weights` another."""
    if env.scope == caller.scope or not env.scope:
        return
    for n, (value, name) in enumerate(zip(results.values, results.names, strict=True)):
        assert isinstance(value, Tensor)
        if n == 0:
            context.builder.names[env.scope] = value.value
        if name:
            context.builder.names[f"{env.scope}:{name}"] = value.value
