"""What a name means where it stands: the innermost of variables, lengths, config, blocks, words."""

import math
from typing import Any

from specc.elaborate.context import Context, Env
from specc.elaborate.values import POISON, Function, RawConfig, Record, Results
from specc.elaborate.vocabulary.registry import WORDS
from specc.lang import tree
from specc.text.diagnostic import Label, fail
from specc.text.source import Span
from specc.text.suggest import did_you_mean

FIXED: dict[str, Any] = {"true": True, "false": False, "none": None, "inf": math.inf, "pi": math.pi}
SLIPS = {"True": "true", "False": "false", "None": "none", "null": "none", "yes": "true", "no": "false", "on": "true",
         "off": "false", "nil": "none", "~": "none"}  # fmt: skip


def lookup(context: Context, name: tree.Name, env: Env, quiet: bool = False) -> Any:
    """The value of a dotted name. E0202 with the nearest names when there is none; POISON when `quiet`."""
    head, *rest = name.path.split(".")
    found = _head(context, head, env, name.span)
    if found is _NOTHING:
        if name.path.startswith("config.") or head in env.module.uses:
            found = _elsewhere(head, env)
        if found is _NOTHING:
            if quiet:
                return POISON
            _unknown(context, name, env)
    for part in rest:
        found = _member(found, part, name, quiet)
    return found


class _Nothing:
    """No such name."""


_NOTHING = _Nothing()


def _head(context: Context, head: str, env: Env, span: Span | None) -> Any:
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
        helps = [
            "insert(x, axis=1) gives the query a length axis, of one row",
            "around(center, reach) and ending(at, back) are told where each query looks",
        ]
        title = "the query has no position: it is one vector for each sample"
        fail("E0604", title, span, "its position would be read here", helps=helps)
    return function(context, head, env, span)


def _elsewhere(head: str, env: Env) -> Any:
    return RawConfig("", env.raw) if head == "config" else _NOTHING


def function(context: Context, name: str, env: Env, span: Span | None) -> Any:
    """A block, definition or word by name, not applied."""
    target = env.module.items.get(name)
    module = env.module
    if target is None and (found := context.library.standard(name)):
        target, module = found
    if target is not None:
        return Function(target.kind if target.kind != "graph" else "block", name, (target, module), env=env, span=span)
    if name in WORDS:
        return Function("op", name, WORDS[name], env=env, span=span)
    return _NOTHING


def is_nothing(value: Any) -> bool:
    """Whether `function` found no such name."""
    return value is _NOTHING


def _member(found: Any, part: str, name: tree.Name, quiet: bool) -> Any:
    match found:
        case Record(fields=fields) if part in fields:
            return fields[part]
        case Record(fields=fields):
            if quiet:
                return POISON
            near = did_you_mean(part, fields)
            helps = [f"did you mean `{near}`?"] if near else [f"it has {', '.join(fields)}"]
            fail("E0202", f"`{name.path}`: there is no `{part}` here", name.span, helps=helps)
        case RawConfig(path=path, data=data):
            inner = data.get(part) if isinstance(data, dict) else None
            return RawConfig(f"{path}.{part}".lstrip("."), inner)
        case Results(values=values, names=names) if part in names:
            return values[names.index(part)]
        case _:
            fail("E0202", f"`{name.path}`: `{part}` is no part of it", name.span)


def _unknown(context: Context, name: tree.Name, env: Env) -> Any:
    if name.path in SLIPS:
        right = SLIPS[name.path]
        fail("E0105", f"`{name.path}` is not a value here; did you mean `{right}`?", name.span)
    here = [*env.rows, *env.names, *env.dims, *env.config, *env.module.dims, *FIXED]
    callable_ = [*env.module.items, *context.library.standard_names(), *WORDS]
    near = did_you_mean(name.path, here) or did_you_mean(name.path, callable_)
    helps = [f"did you mean `{near}`?"] if near else []
    if not near and (shown := sorted(n for n in {*env.names, *env.config} if not n.startswith("_"))):
        helps.append(f"in sight here: {', '.join(shown[:12])}")
    others: list[Label] = []
    fail("E0202", f"`{name.path}` is not defined", name.span, "unknown name", others=others, helps=helps)
