"""What a name means where it stands: the innermost of variables, lengths, config, blocks, words."""

import math
from dataclasses import replace
from typing import NoReturn

from specc.elaborate.context import Context, Env, Module, joined
from specc.elaborate.foreign import elsewhere
from specc.elaborate.json_nodes import JsonObject
from specc.elaborate.values import (
    POISON,
    BlockFunction,
    DefinitionFunction,
    Evaluated,
    Function,
    Known,
    RawConfig,
    Record,
    Results,
    Tensor,
    WordFunction,
)
from specc.elaborate.vocabulary.registry import WORDS
from specc.lang import tree
from specc.text.diagnostic import Label, fail
from specc.text.source import Span
from specc.text.suggest import did_you_mean, suggest, suggestion

FIXED: dict[str, Known] = {
    "true": True,
    "false": False,
    "none": None,
    "inf": math.inf,
    "pi": math.pi,
}
"""Names that mean the same everywhere."""

SLIPS = {
    "True": "true",
    "False": "false",
    "None": "none",
    "null": "none",
    "yes": "true",
    "no": "false",
    "on": "true",
    "off": "false",
    "nil": "none",
    "~": "none",
}
"""What other languages call them."""

ROW_NUMBERS = ("i", "j")
"""What definitions of masks, scores, biases and normalizers call the rows of query and key."""


class _Nothing:
    """No such name. Neither None nor POISON will do: names may stand for both."""


_NOTHING = _Nothing()


def lookup(
    context: Context, name: tree.Name, env: Env, quiet: bool = False
) -> Evaluated:
    """The value of a dotted name. E0202 with the nearest names when there is none;
    POISON when `quiet`.
    """
    head, *rest = name.path.split(".")
    value: Evaluated | _Nothing = _head(context, head, env, name.span)
    if isinstance(value, _Nothing) and head == "config" and rest:
        # the whole configuration file: a variable or field called `config` hides it
        value = RawConfig("", env.raw)
    if isinstance(value, _Nothing):
        if rest and (used := of_used(context, name, env)) is not None:
            return used
        if quiet:
            return POISON
        _unknown(context, name, env)
    # a block of a used spec stands beside the values of its config
    if (
        rest
        and isinstance(value, Record)
        and value.of
        and rest[0] in value.of.module.items
        and (used := of_used(context, name, env)) is not None
    ):
        return used
    for part in rest:
        value = _member(value, part, name, quiet)
    return value


def _head(context: Context, head: str, env: Env, span: Span | None) -> Known | _Nothing:
    """What the first part of a name stands for. The innermost names win: rows of a
    grid, then variables, then lengths, then config values, and what std has comes last.
    """
    if head in env.rows:
        return env.rows[head]
    if head in env.names:
        return env.names[head]
    if head in env.dims:
        return env.dims[head]
    if head in env.config:
        return env.config[head]
    if (length := env.run_time(head)) is not None:
        return length
    if head in FIXED:
        return FIXED[head]
    if head == "i" and env.rows:
        # a grid without query rows has `j` alone: [batch, d] asks for one query
        helps = [
            "`insert(x, axis=1)` gives the query a length axis, of one row",
            "`around(center, reach)` and `ending(at, back)` are told where each query looks",
        ]
        title = "the query has no position: it is one vector for each sample"
        fail("E0604", title, span, "its position would be read here", helps=helps)
    target = function(context, head, env, span)
    return _NOTHING if target is None else target


def function(
    context: Context, name: str, env: Env, span: Span | None
) -> Function | None:
    """A block, definition or word by name, not applied. A spec's own hides that of std,
    which hides a word.
    """
    found = env.module.found(name) or context.library.standard(name)
    # where a normalizer is due, std's `topk` is one; elsewhere it is the word
    word = found is not None and found[1].standard and name in WORDS
    if found is not None and not word:
        return _named(*found, env, span)
    if name in WORDS:
        return WordFunction(name=name, word=WORDS[name], env=env, span=span)
    return None


def _named(
    item: tree.Block | tree.Definition, module: Module, env: Env, span: Span | None
) -> Function:
    """An item as what its name stands for, not applied."""
    name = item.name
    if isinstance(item, tree.Block):
        return BlockFunction(name=name, block=item, module=module, env=env, span=span)
    return DefinitionFunction(
        name=name, definition=item, module=module, env=env, span=span
    )


def of_used(context: Context, name: tree.Name, env: Env) -> Function | None:
    """`v.encoder`: an item of a file that `use` names; None where none is named so."""
    alias, _, inner = name.path.partition(".")
    if (said := env.module.user(alias)) is None:
        return None
    use, user = said
    held = env.config.get(alias)
    # an empty config: a block of another file gets its own values, not the caller's
    there = Env(module=env.module, config={})
    if isinstance(held, Record) and held.of is not None:
        base = joined(env.base, use.under.text if use.under else "")
        settings = held.of
        there = Env(
            module=settings.module, config=held.fields, raw=settings.raw, base=base
        )
    else:
        there.module = context.library.used(use.path, user, use.span)
    module = there.module
    if inner not in module.items:
        helps = suggest(inner, module.items, f"it has {', '.join(module.items)}")
        title = f"`{module.path}` has no block or graph called `{inner}`"
        others = [Label(use.span, "this file")] if use.span and use.others else []
        fail("E0204", title, name.span, helps=helps, others=others)
    found = _named(module.items[inner], module, there, name.span)
    if isinstance(found, BlockFunction) and use.owns:
        return replace(found, base=there.base)
    return found


def _member(value: Evaluated, part: str, name: tree.Name, quiet: bool) -> Evaluated:
    """`part` of a record, of a part of the config file, or of a call's results."""
    match value:
        case Record(fields=fields) if part in fields:
            return fields[part]
        case Record(fields=fields):
            if quiet:
                return POISON
            helps = suggest(part, fields, f"it has {', '.join(fields)}")
            title = f"`{name.path}`: there is no `{part}` here"
            fail("E0202", title, name.span, helps=helps)
        case RawConfig(path=path, data=data):
            member = data.members.get(part) if data else None
            inner = member.value if member else None
            return RawConfig(
                f"{path}.{part}".lstrip("."),
                inner if isinstance(inner, JsonObject) else None,
            )
        case Results(values=values, names=names) if part in names:
            return values[names.index(part)]
    # `x.shape`, `x.T`
    mend = elsewhere(part, WORDS) if isinstance(value, Tensor) else ""
    title = f"`{name.path}`: `{part}` is no part of it"
    fail("E0202", title, name.span, helps=[mend] if mend else ())


def _unknown(context: Context, name: tree.Name, env: Env) -> NoReturn:
    if name.path in SLIPS:
        meant = suggestion(SLIPS[name.path])
        fail("E0105", f"`{name.path}` is not a value here; {meant}", name.span)
    here = [
        *env.rows,
        *env.names,
        *env.dims,
        *env.config,
        *env.module.root.dims,
        *FIXED,
    ]
    callable_ = [*env.module.names(), *context.library.standard_names(), *WORDS]
    # a variable is meant more often than a block where no call is
    near = did_you_mean(name.path, here) or did_you_mean(name.path, callable_)
    shown = sorted(n for n in {*env.names, *env.config} if not n.startswith("_"))
    helps = []
    if name.path in ROW_NUMBERS:
        helps = [
            f"`{name.path}` counts rows in the definition of a mask, a score or a bias; "
            "define one, and name it here"
        ]
    elif near:
        helps = [suggestion(near)]
    elif shown:
        helps = [f"in sight here: {', '.join(shown[:12])}"]
    title = f"`{name.path}` is not defined"
    fail("E0202", title, name.span, "unknown name", helps=helps)
