"""Calls: of blocks, of words, of definitions, of things handed over to be applied."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from specc.elaborate.blocks import call_block, own_scope
from specc.elaborate.context import Context, Env, Poisoned
from specc.elaborate.definitions import hold_definition
from specc.elaborate.expressions import evaluate, plain
from specc.elaborate.kinds import Applied, Number, fit, takes, words_of
from specc.elaborate.lookup import FIXED, function, is_nothing, lookup
from specc.elaborate.names import weight_path
from specc.elaborate.numbers import attribute, is_number
from specc.elaborate.values import POISON, Function, Tensor, Unknown, describe
from specc.elaborate.vocabulary.registry import MISSING, WORDS, Site, Slot, Word
from specc.ir.dim import DimError, DimLimit
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed, Fix, Label, fail
from specc.text.source import Span
from specc.text.suggest import did_you_mean


def call(context: Context, expr: tree.Call, env: Env) -> Any:
    """The value of `f(args, options) @ weights`."""
    target = callee(context, expr.function, env)
    if target.kind in ("mask", "score", "bias"):
        return hold_definition(context, target, expr, env)
    if target.kind == "op" and target.name == "apply":
        return _apply(context, expr, env)
    return _run(context, target, expr, expr.args, expr.options, env)


def callee(context: Context, name: tree.Name, env: Env) -> Function:
    """What a call calls. E0202 with the nearest name when there is no such thing."""
    if "." in name.path:
        return _in_used(context, name, env)
    held = env.names.get(name.path, env.config.get(name.path))
    if isinstance(held, Function):
        return held
    found = function(context, name.path, env, name.span)
    if not is_nothing(found) and isinstance(found, Function):
        return found
    if held is not None:
        fail("E0205", f"`{name.path}` is {describe(held)}, not something to call", name.span)
    known = [*env.module.items, *context.library.standard_names(), *WORDS]
    near = did_you_mean(name.path, known)
    fail(
        "E0204",
        f"there is no block or operation called `{name.path}`",
        name.span,
        "unknown operation",
        helps=[f"did you mean `{near}`?" if near else "`specc list` shows what there is"],
    )


def _in_used(context: Context, name: tree.Name, env: Env) -> Function:
    alias, _, inner = name.path.partition(".")
    value = lookup(context, tree.Name(alias, span=name.span), env, quiet=True)
    if isinstance(value, Function):
        return value
    if alias not in env.module.uses:
        near = did_you_mean(alias, env.module.uses)
        helps = [f"did you mean `{near}`?"] if near else ['write `use "file.specc" as ' + alias + "` above"]
        fail("E0204", f"no used file is called `{alias}`", name.span, helps=helps)
    module = context.library.used(env.module.uses[alias].path, env.module, env.module.uses[alias].span)
    item = module.items.get(inner)
    if item is None:
        near = did_you_mean(inner, module.items)
        helps = [f"did you mean `{near}`?" if near else f"it has {', '.join(module.items)}"]
        fail("E0204", f"`{module.path}` has no block or graph called `{inner}`", name.span, helps=helps)
    kind = item.kind if isinstance(item, tree.Definition) else "block"
    return Function(kind, inner, (item, module), env=Env(module, {}), span=name.span)


def _apply(context: Context, expr: tree.Call, env: Env) -> Any:
    """`apply(f, x, …)`: what `f` stands for, of these arguments."""
    if not expr.args:
        fail("E0211", "`apply` needs something to apply", expr.span)
    target = argument(context, expr.args[0], Applied, "the first argument of `apply`", env)
    return _run(context, target, expr, expr.args[1:], expr.options, env)


def _run(
    context: Context,
    target: Function,
    expr: tree.Call,
    args: Sequence[Any],
    options: Sequence[tree.Option],
    env: Env,
) -> Any:
    inner = env
    if target.weights:
        inner = inner.under(weight_path(context, target.weights, target.env or env))
    if expr.weights:
        inner = inner.under(weight_path(context, expr.weights, env))
    if target.kind == "op":
        return _call_word(context, target, expr, args, options, env, inner)
    if target.kind != "block":
        helps = [f"give it to `attend` or `attend_by`, as `{target.kind if target.kind != 'bias' else 'add'}=`"]
        fail("E0205", f"{describe(target)} is not applied to tensors", expr.span, helps=helps)
    return call_block(context, target, expr, args, options, env, inner)


def _call_word(
    context: Context,
    target: Function,
    expr: tree.Call,
    args: Sequence[Any],
    options: Sequence[tree.Option],
    env: Env,
    inner: Env,
) -> Any:
    word: Word = target.target
    if word.name == "apply":
        fail("E0205", "`apply` itself is not something to apply", expr.span)
    site = Site(context, inner, expr)
    given = _pair(word, args, options, expr, site.spans)
    values: dict[str, Any] = dict(target.given)
    faults: list[Diagnostic] = []
    rest: list[Any] = []
    poisoned = False
    for slot, value in given:
        what = f"`{slot.name}` of `{word.name}`" if not slot.many else f"`{word.name}`"
        try:
            made = argument(context, value, slot.kind, what, env)
        except Failed as failed:
            faults += failed.diagnostics
            continue
        except Poisoned:
            poisoned = True
            continue
        if slot.many:
            rest.append(made)
        else:
            values[slot.name] = made
    if faults:
        raise Failed(*faults)
    if poisoned:
        raise Poisoned
    _complete(word, values, bool(rest), expr)
    many = [s for s in word.slots if s.many]
    first = [values.pop(s.name) for s in word.slots if s.positional and not s.many and s.name in values and many]
    python = {_python(k): v for k, v in values.items()}
    try:
        with context.sharing.step(expr, own_scope(target, expr, inner)):
            return word.make(site, *first, *rest, **python)
    except DimLimit as error:
        fail("E0309", f"`{word.name}`: {error}", expr.span)
    except DimError as error:
        fail("E0310", f"`{word.name}`: {error}", expr.span)


def _python(name: str) -> str:
    """Parameters that would be Python keywords or hide builtins end in an underscore there."""
    return {"as": "as_", "in": "in_", "from": "from_"}.get(name, name)


def _pair(
    word: Word, args: Sequence[Any], options: Sequence[tree.Option], expr: tree.Call, spans: dict[str, Span | None]
) -> list[tuple[Slot, Any]]:
    places = [s for s in word.slots if s.positional]
    found: list[tuple[Slot, Any]] = []
    for n, value in enumerate(args):
        slot = places[min(n, len(places) - 1)] if places else None
        if slot is None or (n >= len(places) and not slot.many):
            helps = [f"`{word.shown()}`"]
            fail("E0211", f"`{word.name}` takes {_count(len(places))}, this is one more", value.span, helps=helps)
        found.append((slot, value))
        spans[slot.name] = value.span
    by_name = {s.name: s for s in word.slots if not s.many}
    for option in options:
        if option.name not in by_name:
            _no_option(word.name, option, by_name)
        if any(s.name == option.name for s, _ in found):
            fail("E0212", f"`{option.name}` is given twice", option.name_span or option.span)
        found.append((by_name[option.name], option.value))
        spans[option.name] = option.value.span
    return found


def _count(n: int) -> str:
    return "no input" if not n else f"{n} input{'s' if n > 1 else ''}"


def _no_option(called: str, option: tree.Option, known: Mapping[str, Any]) -> None:
    near = did_you_mean(option.name, known)
    at = option.name_span or option.span
    takes_ = f"`{called}` takes: {', '.join(known)}" if known else f"`{called}` takes no options"
    helps = (f"did you mean `{near}`? {takes_}" if near else takes_,)
    fixes = (Fix(at, near),) if near and at else ()
    primary = Label(at, "unknown option") if at else None
    notes = (READ_FROM_SHAPES[called],) if called in READ_FROM_SHAPES and "head" in option.name else ()
    title = f"`{called}` has no option `{option.name}`"
    raise Failed(Diagnostic("E0201", title, primary, notes=notes, helps=helps, fixes=fixes))


READ_FROM_SHAPES = {
    "attend": "the head count is read from the shape of `q`, so the option can go",
    "attend_by": "the head count is read from the shape of `q`, so the option can go",
}
"""What people coming from other libraries want to give as an option."""


def _complete(word: Word, values: Mapping[str, Any], rest: bool, expr: tree.Call) -> None:
    for slot in word.slots:
        if slot.many:
            if not rest and not any(s.positional and s.name in values for s in word.slots):
                fail("E0211", f"`{word.name}` needs an input", expr.span, helps=[f"`{word.shown()}`"])
        elif slot.default is MISSING and slot.name not in values:
            what = "input" if slot.positional else "option"
            helps = [f"`{word.shown()}`"]
            if words := words_of(slot.kind):
                helps = [
                    f"write `{slot.name}={'` or `'.join(f'{slot.name}={w}' for w in words)[len(slot.name) + 1 :]}`"
                ]
            fail("E0211", f"`{word.name}` needs the {what} `{slot.name}`", expr.span, helps=helps)


def argument(context: Context, expr: Any, kind: Any, what: str, env: Env) -> Any:
    """The value of an argument where `kind` is expected: bare words, and calls that are to be held, not made."""
    words = words_of(kind)
    if words and isinstance(expr, tree.Name) and expr.path in words and expr.path not in env.names:
        return expr.path
    if words and isinstance(expr, tree.Name) and not takes(kind, str):
        known = lookup(context, expr, env, quiet=True)
        if known is POISON:
            near = did_you_mean(expr.path, words)
            helps = [f"did you mean `{near}`?"] if near else [f"it is one of {', '.join(words)}"]
            fail("E0203", f"{what} cannot be `{expr.path}`", expr.span, helps=helps)
    value = held(context, expr, env) if takes(kind, Applied) else plain(context, expr, env)
    if value is POISON:
        raise Failed
    if isinstance(value, Tensor) and takes(kind, Tensor):
        return value
    if isinstance(value, Unknown) and not any(takes(kind, k) for k in (float, Number, Any)):
        attribute(context, value, what, expr.span)
    return _settled(context, fit(value, kind, what, expr.span), kind, what, expr.span)


def _settled(context: Context, value: Any, kind: Any, what: str, span: Span | None) -> Any:
    """A number that an operation is made with is known, or a config value that is still a symbol."""
    if isinstance(value, tuple) and get_args(kind)[:1] == (float,):
        return tuple(attribute(context, v, what, span) for v in value)
    return attribute(context, value, what, span) if takes(kind, float) and is_number(value) else value


def held(context: Context, expr: Any, env: Env) -> Any:
    """An expression that names something to apply later: `layer_norm(eps=1e-5)`, `gelu`, `none`."""
    if isinstance(expr, tree.Choice):
        from_ = evaluate(context, expr.condition, env)
        return held(context, expr.then if from_ else expr.otherwise, env)
    if isinstance(expr, tree.Name) and expr.path in FIXED:
        return FIXED[expr.path]
    if not isinstance(expr, tree.Call):
        return plain(context, expr, env)
    target = callee(context, expr.function, env)
    if target.kind in ("mask", "score", "bias"):
        return hold_definition(context, target, expr, env)
    return hold(context, target, expr, env)


def hold(context: Context, target: Function, expr: tree.Call, env: Env) -> Any:
    """A block or word with some options given."""
    if target.kind == "op":
        word: Word = target.target
        if not any(s.positional and s.default is MISSING for s in word.slots):
            return call(context, expr, env)
        by_name = {s.name: s for s in word.slots}
        given = dict(target.given)
        for option in expr.options:
            if option.name not in by_name:
                _no_option(word.name, option, by_name)
            what = f"`{option.name}` of `{word.name}`"
            given[option.name] = argument(context, option.value, by_name[option.name].kind, what, env)
        if expr.args:
            fail("E0211", f"`{word.name}` is to be applied later: give it options only", expr.args[0].span)
        return replace(target, given=given, weights=expr.weights, env=env)
    given = {**target.given, **{o.name: (o, env) for o in expr.options}}
    if expr.args:
        fail("E0211", f"`{target.name}` is to be applied later: give it options only", expr.args[0].span)
    return replace(target, given=given, weights=expr.weights, env=target.env)
