"""Calls of words: arguments paired with the slots of a word, evaluated, handed to it."""

from collections.abc import Collection, Mapping
from typing import NoReturn

from specc.elaborate.application import Application
from specc.elaborate.arguments import argument
from specc.elaborate.context import Context, Env, Poisoned
from specc.elaborate.foreign import option_meant
from specc.elaborate.kinds import words_of
from specc.elaborate.values import Evaluated, Known, WordFunction
from specc.elaborate.vocabulary.registry import MISSING, Site, Slot, Word
from specc.ir.dim import DimError, DimLimit
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed, Fix, Label, fail
from specc.text.suggest import suggestion

READ_FROM_SHAPES = {
    "attend": "the head count is read from the shape of `q`, so the option can go",
    "attend_by": "the head count is read from the shape of `q`, so the option can go",
}
"""What people coming from other libraries want to give as an option."""


def call_word(context: Context, target: WordFunction, call: Application) -> Evaluated:
    """What a word makes of these arguments."""
    word, expr = target.word, call.expr
    if word.name == "apply":
        fail("E0205", "`apply` itself is not something to apply", expr.span)
    site = Site(context=context, env=call.inner, call=expr)
    pairs = _pair(word, call, site)
    values = dict(target.given)
    rest = _evaluate(context, word, pairs, values, call.caller)
    _complete(word, values, bool(rest), expr)
    # `min(a, b, c)`: Python takes what comes before `*others` by place only
    leading = [s.name for s in word.slots if s.positional and not s.many and word.many]
    by_place = [values.pop(name) for name in leading if name in values]
    by_name = {_python(k): v for k, v in values.items()}
    try:
        with context.sharing.step(expr, call.own_scope):
            return word.make(site, *by_place, *rest, **by_name)
    except DimLimit as error:
        fail("E0309", f"`{word.name}`: {error}", expr.span)
    except DimError as error:
        fail("E0310", f"`{word.name}`: {error}", expr.span)


def _python(name: str) -> str:
    """Parameters that would be Python keywords or hide builtins end in an underscore there."""
    return {"as": "as_", "in": "in_", "from": "from_"}.get(name, name)


def _evaluate(
    context: Context,
    word: Word,
    pairs: list[tuple[Slot, tree.Expr]],
    values: dict[str, Known],
    env: Env,
) -> list[Known]:
    """Every argument made to fit: those with a name into `values`, the others returned.

    All are tried before any fault is raised, so that one call tells all that is wrong
    with it.
    """
    faults: list[Diagnostic] = []
    rest: list[Known] = []
    poisoned = False
    for slot, expr in pairs:
        what = f"`{word.name}`" if slot.many else f"`{slot.name}` of `{word.name}`"
        try:
            value = argument(context, expr, slot.kinds, what, env)
        except Failed as failed:
            faults += failed.diagnostics
        except Poisoned:
            poisoned = True
        else:
            if slot.many:
                rest.append(value)
            else:
                values[slot.name] = value
    if faults:
        raise Failed(*faults)
    if poisoned:
        raise Poisoned
    return rest


def _pair(word: Word, call: Application, site: Site) -> list[tuple[Slot, tree.Expr]]:
    """Each argument with the slot it is for; `site` learns where each stands."""
    places = [s for s in word.slots if s.positional]
    pairs: list[tuple[Slot, tree.Expr]] = []
    for n, value in enumerate(call.args):
        # the last place may take any number: `max(a, b, c)`
        slot = places[min(n, len(places) - 1)] if places else None
        if slot is None or (n >= len(places) and not slot.many):
            count = _count(len(places))
            title = f"`{word.name}` takes {count}, this is one more"
            fail("E0211", title, value.span, helps=[f"`{word.shown()}`"])
        pairs.append((slot, value))
        site.spans[slot.name] = value.span
    by_name = {s.name: s for s in word.slots if not s.many}
    for option in call.options:
        if option.name not in by_name:
            no_option(word.name, option, by_name)
        # by place already: `linear(x, x=y)`
        if any(s.name == option.name for s, _ in pairs):
            at = option.name_span or option.span
            fail("E0212", f"`{option.name}` is given twice", at)
        pairs.append((by_name[option.name], option.value))
        site.spans[option.name] = option.value.span
    return pairs


def _count(n: int) -> str:
    return "no input" if not n else f"{n} input{'s' if n > 1 else ''}"


def no_option(called: str, option: tree.Option, known: Collection[str]) -> NoReturn:
    """E0201 for an option that a word does not have, mended where its name is sure."""
    near = option_meant(option.name, known)
    at = option.name_span or option.span
    takes = f"`{called}` takes no options"
    if known:
        takes = f"`{called}` takes: {', '.join(known)}"
    notes: tuple[str, ...] = ()
    if called in READ_FROM_SHAPES and "head" in option.name:
        notes = (READ_FROM_SHAPES[called],)
    raise Failed(
        Diagnostic(
            "E0201",
            f"`{called}` has no option `{option.name}`",
            Label(at, "unknown option") if at else None,
            notes=notes,
            helps=(f"{suggestion(near)} {takes}" if near else takes,),
            fixes=(Fix(at, near),) if near and at else (),
        )
    )


def _complete(
    word: Word, values: Mapping[str, Known], rest: bool, expr: tree.Call
) -> None:
    """E0211 for a slot without a default that nothing was given for."""
    for slot in word.slots:
        if slot.many:
            inputs = [s.name for s in word.slots if s.positional]
            if not rest and not any(name in values for name in inputs):
                title = f"`{word.name}` needs an input"
                fail("E0211", title, expr.span, helps=[f"`{word.shown()}`"])
        elif slot.default is MISSING and slot.name not in values:
            what = "input" if slot.positional else "option"
            helps = [f"`{word.shown()}`"]
            if words := words_of(slot.kinds):
                choices = " or ".join(f"`{slot.name}={word}`" for word in words)
                helps = [f"write {choices}"]
            title = f"`{word.name}` needs the {what} `{slot.name}`"
            fail("E0211", title, expr.span, helps=helps)
