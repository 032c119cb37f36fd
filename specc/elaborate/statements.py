"""Statements in order: names bound, loops over counts unrolled, conditions decided."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specc.elaborate.context import MOST_LAYERS, Context, Env, Poisoned
from specc.elaborate.expressions import evaluate, number_of, plain, truth
from specc.elaborate.loops import run_scan
from specc.elaborate.names import weight_path
from specc.elaborate.typing import fit_static, is_tensor, match_tensor
from specc.elaborate.values import POISON, Results, Tensor, describe, first
from specc.ir.dim import Dim
from specc.lang import tree
from specc.lang.walk import walk
from specc.text.diagnostic import Diagnostic, Failed, Label, fail
from specc.text.source import Span


def run_body(context: Context, body: Sequence[Any], env: Env) -> Any:
    """Run statements; `(statement, values)` of the `return` that ended them, or None.

    A statement at fault poisons what it should have bound, so that others can still be checked.
    """
    for statement in body:
        returned = RULES[type(statement)](context, statement, env)
        if returned is not None:
            return returned
    return None


def _let(context: Context, statement: tree.Let, env: Env) -> None:
    before = len(context.diagnostics)
    value: Any = POISON
    with context.catching():
        value = evaluate(context, statement.value, env)
        _assign(context, statement, value, env)
        return
    assert len(context.diagnostics) >= before
    for target in statement.targets:
        env.names[target.name] = POISON


def _assign(context: Context, statement: tree.Let, value: Any, env: Env) -> None:
    targets = statement.targets
    values: tuple[Any, ...] = (first(value),)
    if len(targets) > 1:
        values = value.values if isinstance(value, Results) else value if isinstance(value, tuple) else (value,)
        if len(values) < len(targets):
            title = f"{len(targets)} names for {len(values)} result{'s' if len(values) != 1 else ''}"
            fail("E0215", title, statement.value.span)
    for target, made in zip(targets, values, strict=False):
        if target.name != "_":
            env.names[target.name] = _typed(context, target, first(made), env, statement)
            if isinstance(made, Tensor):
                path = f"{env.scope}:{target.name}" if env.scope else target.name
                context.builder.names[path] = made.value


def _typed(context: Context, target: tree.Target, value: Any, env: Env, statement: tree.Let) -> Any:
    if target.type is None:
        return value
    if is_tensor(target.type):
        return match_tensor(context, target.type, value, env, statement.value.span, f"`{target.name}`")
    return fit_static(context, value, target.type, f"`{target.name}`", statement.value.span, env)


def _repeat(context: Context, statement: tree.Repeat, env: Env) -> Any:
    items = _turns(context, statement, env)
    collected: dict[str, list[Any]] = {name: [] for name in statement.collect}
    outer = env.names.get(statement.variable)
    for item in items:
        context.work(statement.span)
        env.names[statement.variable] = item
        scope = env.scope
        if statement.under:
            env.scope = env.under(weight_path(context, statement.under, env)).scope
        with context.sharing.step(statement, env.scope if statement.under else ""):
            returned = run_body(context, statement.body, env)
        env.scope = scope
        if returned is not None:
            fail("E0214", "`return` cannot stand inside `repeat`", returned[0].span)
        for name, values in collected.items():
            if name not in env.names:
                fail("E0202", f"`{name}` is collected but never set in the loop", statement.span)
            values.append(env.names[name])
    env.names.pop(statement.variable, None)
    if outer is not None:
        env.names[statement.variable] = outer
    env.names.update({name: tuple(values) for name, values in collected.items()})
    return None


def _turns(context: Context, statement: tree.Repeat, env: Env) -> Sequence[Any]:
    over = plain(context, statement.over, env)
    if isinstance(over, tuple):
        items: Sequence[Any] = over
    else:
        count = number_of(over, "a count", statement.over.span)
        if count < 0:
            fail("E0216", f"nothing can be repeated {count} times", statement.over.span)
        items = range(min(count, MOST_LAYERS + 1))
    if len(items) > MOST_LAYERS:
        fail("E0216", f"more than {MOST_LAYERS} turns of a loop", statement.over.span)
    context.work(statement.span, len(items))
    return [Dim.of(i) if isinstance(i, int) and not isinstance(i, bool) else i for i in items]


def _when(context: Context, statement: tree.When, env: Env) -> Any:
    taken = truth(context, statement.condition, env, "the condition of `when`")
    return run_body(context, statement.body if taken else statement.otherwise, env)


def _return(context: Context, statement: tree.Return, env: Env) -> Any:
    values: list[Any] = []
    for value in statement.values:
        with context.catching():
            values.append(evaluate(context, value, env))
    if len(values) < len(statement.values):
        raise Poisoned
    return statement, tuple(values)


def _require(context: Context, statement: tree.Require, env: Env) -> None:
    require(context, statement, env, {})


def require(context: Context, statement: tree.Require, env: Env, given: Mapping[str, Span | None]) -> None:
    """A condition that must hold. E0404 in the words the spec gives; `given` is where config values were set."""
    held = plain(context, statement.condition, env)
    if not isinstance(held, bool):
        fail("E0203", f"`require` takes a condition, not {describe(held)}", statement.condition.span)
    if not held:
        known = sorted({n.path: None for n in names_in(statement.condition)})
        values = {n: env.names.get(n, env.config.get(n)) for n in known}
        facts = ", ".join(f"{n} = {v}" for n, v in values.items() if isinstance(v, Dim | float | str))
        origins = {n: v.origin.span for n, v in values.items() if isinstance(v, Dim) and v.origin}
        spans = {n: given.get(n) or origins.get(n) for n in known}
        others = [Label(span, f"{n} is {shown(values[n])}") for n, span in spans.items() if span]
        first = Label(statement.condition.span, "this does not hold") if statement.condition.span else None
        theirs = next((o for o in others if first and o.span.source is not first.span.source), None)
        if first and theirs:  # what was given comes before what was asked for
            others = [first, *(o for o in others if o is not theirs)]
        title = statement.because or "a requirement of this spec does not hold"
        notes = (facts,) if facts else ()
        raise Failed(Diagnostic("E0404", title, theirs or first, tuple(others), notes))


def shown(value: Any) -> str:
    """A config value in a few words."""
    return str(value) if isinstance(value, Dim | float | str) else describe(value)


def names_in(expr: Any) -> list[tree.Name]:
    """Every name of a value that an expression mentions: those of what it calls are none."""
    called = {id(n.function) for n in walk(expr) if isinstance(n, tree.Call)}
    return [n for n in walk(expr) if isinstance(n, tree.Name) and id(n) not in called]


def _scan(context: Context, statement: tree.Scan, env: Env) -> None:
    with context.catching():
        run_scan(context, statement, env, run_body)
        return
    for name in (*statement.carry, *statement.collect):
        env.names[name] = POISON


RULES: dict[type, Callable[[Context, Any, Env], Any]] = {
    tree.Let: _let,
    tree.Repeat: _repeat,
    tree.When: _when,
    tree.Return: _return,
    tree.Require: _require,
    tree.Scan: _scan,
}
