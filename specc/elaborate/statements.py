"""Statements in order: names bound, loops over counts unrolled, conditions decided."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from specc.elaborate.context import MOST_LAYERS, Context, Env, Poisoned
from specc.elaborate.expressions import evaluate, number_of, plain, truth
from specc.elaborate.loops import run_scan
from specc.elaborate.names import weight_path
from specc.elaborate.noted import note
from specc.elaborate.typing import Place, fit_static, is_tensor, match_tensor
from specc.elaborate.values import (
    POISON,
    Evaluated,
    Known,
    Results,
    Tensor,
    describe,
    first,
)
from specc.ir.dim import Dim
from specc.lang import tree
from specc.lang.walk import walk
from specc.text.diagnostic import Diagnostic, Failed, Label, fail
from specc.text.source import Span

Returned: TypeAlias = tuple[tree.Return, tuple[Evaluated, ...]]
"""The `return` that ended a body, and its values."""


def run_body(
    context: Context, body: Sequence[tree.Statement], env: Env
) -> Returned | None:
    """Run statements; `(statement, values)` of the `return` that ended them, or None.

    A statement at fault poisons what it should have bound, so that others can still be
    checked.
    """
    # a `return` inside `when` ends the whole body, not only its branch
    for statement in body:
        # what a block before left there is not where this one stands
        context.scope = env.scope
        returned = RULES[type(statement)](context, statement, env)
        if returned is not None:
            return returned
    return None


def _let(context: Context, statement: tree.Let, env: Env) -> None:
    with context.catching():
        value = evaluate(context, statement.value, env)
        _assign(context, statement, value, env)
        return
    # reached where a fault was caught: what depends on these names keeps quiet
    for target in statement.targets:
        env.names[target.name] = POISON


def _assign(context: Context, statement: tree.Let, value: Evaluated, env: Env) -> None:
    for target, one in zip(
        statement.targets, _one_for_each(statement, value), strict=False
    ):
        if target.name == "_":
            continue
        env.names[target.name] = _typed(context, target, one, env, statement)
        note(target.span, one)
        if isinstance(one, Tensor):
            path = f"{env.scope}:{target.name}" if env.scope else target.name
            context.builder.names[path] = one.value


def _one_for_each(statement: tree.Let, value: Evaluated) -> tuple[Known, ...]:
    """The values for the names on the left: one name takes the first result alone,
    several take a call's results or the items of a list. There may be more values.
    """
    count = len(statement.targets)
    if count == 1:
        return (first(value),)
    values: tuple[Known, ...]
    match value:
        case Results(values=values):
            pass
        case tuple():
            values = value
        case one:
            values = (one,)
    if len(values) < count:
        plural = "s" if len(values) != 1 else ""
        title = f"{count} names for {len(values)} result{plural}"
        fail("E0215", title, statement.value.span)
    return values


def _typed(
    context: Context, target: tree.Target, value: Known, env: Env, statement: tree.Let
) -> Known:
    """The value as the type that the user wrote behind the name, if he did."""
    if target.type is None:
        return value
    place = Place(f"`{target.name}`", statement.value.span)
    if is_tensor(target.type):
        return match_tensor(context, target.type, value, env, place)
    return fit_static(context, target.type, value, env, place)


def _repeat(context: Context, statement: tree.Repeat, env: Env) -> None:
    items = _turns(context, statement, env)
    # `collect h` makes a list of what `h` was at the end of each turn
    collected: dict[str, list[Known]] = {name: [] for name in statement.collect}
    # the variable hides one of that name for the length of the loop
    outer = env.names.get(statement.variable)
    for item in items:
        context.work(statement.span)
        env.names[statement.variable] = item
        # the body shares the names of its block, so that only the scope is put back
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
                fail(
                    "E0202",
                    f"`{name}` is collected but never set in the loop",
                    statement.span,
                )
            values.append(env.names[name])
    env.names.pop(statement.variable, None)
    if outer is not None:
        env.names[statement.variable] = outer
    env.names.update({name: tuple(values) for name, values in collected.items()})


def _turns(context: Context, statement: tree.Repeat, env: Env) -> Sequence[Known]:
    """What the variable is in each turn: the items of a list, or 0, 1, … below a count."""
    span = statement.over.span
    over = plain(context, statement.over, env)
    items: Sequence[Known]
    if isinstance(over, tuple):
        items = over
    else:
        count = number_of(over, "a count", span)
        if count < 0:
            fail("E0216", f"nothing can be repeated {count} times", span)
        # one more than is allowed: a count of millions makes no list of millions
        items = [Dim.of(n) for n in range(min(count, MOST_LAYERS + 1))]
    if len(items) > MOST_LAYERS:
        fail("E0216", f"more than {MOST_LAYERS} turns of a loop", span)
    context.work(statement.span, len(items))
    return items


def _when(context: Context, statement: tree.When, env: Env) -> Returned | None:
    taken = truth(context, statement.condition, env, "the condition of `when`")
    return run_body(context, statement.body if taken else statement.otherwise, env)


def _return(context: Context, statement: tree.Return, env: Env) -> Returned:
    values: list[Evaluated] = []
    for value in statement.values:
        with context.catching():
            values.append(evaluate(context, value, env))
    # each value that could not be made was reported; the block ends here all the same
    if len(values) < len(statement.values):
        raise Poisoned
    return statement, tuple(values)


def _require(context: Context, statement: tree.Require, env: Env) -> None:
    require(context, statement, env, {})


def require(
    context: Context,
    statement: tree.Require,
    env: Env,
    given: Mapping[str, Span | None],
) -> None:
    """A condition that must hold. E0404 in the words the spec gives; `given` is where
    config values were set.
    """
    holds = plain(context, statement.condition, env)
    condition = statement.condition
    if not isinstance(holds, bool):
        title = f"`require` takes a condition, not {describe(holds)}"
        fail("E0203", title, condition.span)
    if holds:
        return
    names = sorted({n.path for n in names_in(condition)})
    values = {n: env.names.get(n, env.config.get(n)) for n in names}
    facts = ", ".join(
        f"{n} = {v}" for n, v in values.items() if isinstance(v, Dim | float | str)
    )
    primary, others = _labels(condition, values, given)
    title = statement.because or "a requirement of this spec does not hold"
    notes = (facts,) if facts else ()
    raise Failed(Diagnostic("E0404", title, primary, tuple(others), notes))


def _labels(
    condition: tree.Expr, values: Mapping[str, Known], given: Mapping[str, Span | None]
) -> tuple[Label | None, list[Label]]:
    """What a message about a requirement points at: first and besides.

    A value that the user gave comes before the condition where that stands in another
    file, such as one that is shipped; else the condition comes first.
    """
    origins = {
        n: v.origin.span for n, v in values.items() if isinstance(v, Dim) and v.origin
    }
    spans = {n: given.get(n) or origins.get(n) for n in values}
    labels = [
        Label(span, f"{n} is {shown(values[n])}") for n, span in spans.items() if span
    ]
    if condition.span is None:  # a tree that a program made
        return None, labels
    asked = Label(condition.span, "this does not hold")
    theirs = next(
        (one for one in labels if one.span.source is not condition.span.source), None
    )
    if theirs is None:
        return asked, labels
    return theirs, [asked, *(one for one in labels if one is not theirs)]


def shown(value: Known) -> str:
    """A config value in a few words."""
    return str(value) if isinstance(value, Dim | float | str) else describe(value)


def names_in(expr: tree.Expr) -> list[tree.Name]:
    """Every name of a value that an expression mentions: those of what it calls are none."""
    # by identity: `f(f)` names `f` once as a value
    called = {id(n.function) for n in walk(expr) if isinstance(n, tree.Call)}
    return [n for n in walk(expr) if isinstance(n, tree.Name) and id(n) not in called]


def _scan(context: Context, statement: tree.Scan, env: Env) -> None:
    with context.catching():
        run_scan(context, statement, env, run_body)
        return
    for name in (*statement.carry, *statement.collect):
        env.names[name] = POISON


Rule: TypeAlias = Callable[[Context, Any, Env], Returned | None]
"""What a statement does. Each takes statements of its own class, which the table keys
by; no type says that of a table, so this is the one `Any` here.
"""

RULES: dict[type, Rule] = {
    tree.Let: _let,
    tree.Repeat: _repeat,
    tree.When: _when,
    tree.Return: _return,
    tree.Require: _require,
    tree.Scan: _scan,
}
