"""What may be named where one of a kind is due: told where a name is of nothing."""

from typing import NoReturn

from specc.elaborate.activations import ACTIVATIONS, WRITTEN
from specc.elaborate.context import Context, Env
from specc.elaborate.kinds import NORMALIZERS
from specc.lang import tree
from specc.text.diagnostic import fail
from specc.text.suggest import did_you_mean, suggestion

PLURALS = {
    "activation": "activations",
    "mask": "masks",
    "score": "scores",
    "normalizer": "normalizers",
}
"""Kinds whose names can be listed."""


def no_such(context: Context, kind: str, name: tree.Name, env: Env) -> NoReturn:
    """E0202 for a name where one of a kind of `PLURALS` is due, with the nearest of that
    kind: values of the config have other kinds, and are not what is meant.
    """
    names = names_of(context, kind, env)
    # what published files call an activation is known, however far from our word
    meant = ACTIVATIONS.get(name.path) if kind == "activation" else None
    near = meant or did_you_mean(name.path, names)
    listed = f"{PLURALS[kind]} are {', '.join(names)}"
    fail(
        "E0202",
        f"`{name.path}` is not defined",
        name.span,
        "unknown name",
        helps=[suggestion(near) if near else listed],
    )


def names_of(context: Context, kind: str, env: Env) -> list[str]:
    """The words and definitions of a kind that a spec can name, its own first."""
    if kind == "activation":
        return sorted({ACTIVATIONS.get(name, name) for name in WRITTEN})
    known = [*env.module.names(), *context.library.standard_names()]
    found = [name for name in dict.fromkeys(known) if _kind(context, name, env) == kind]
    return [*found, *NORMALIZERS] if kind == "normalizer" else found


def _kind(context: Context, name: str, env: Env) -> str:
    """`mask`, `score`, … of a definition; of a block nothing."""
    found = env.module.found(name) or context.library.standard(name)
    return found[0].kind if found and isinstance(found[0], tree.Definition) else ""
