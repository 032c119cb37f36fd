"""A spec as a caller in Python names it: a path, the name of a shipped one, or its whole
text; and config values as Python has them.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path

from specc.compiler.spec import Spec, open_spec
from specc.files.read import shown
from specc.lang.limits import NESTING
from specc.lang.read import answered
from specc.library.files import explicit_path
from specc.text.diagnostic import Failed, fail
from specc.text.source import Source

WRITTEN = "<spec>"
"""What messages call a spec that is given as its text."""


@contextmanager
def in_its_syntax() -> Iterator[None]:
    """What is wrong with a spec is said in the syntax of its file, as on the command line."""
    try:
        yield
    except Failed as failed:
        raise Failed(*answered(failed.diagnostics)) from failed.__cause__


def opened(
    spec: str | Path,
    *,
    config: str | Path = "",
    given: Mapping[str, object] | None = None,
    weights: str = "",
    longest: int = 0,
) -> Spec:
    """The spec, with the config values that are `given`. Several lines are its text, of
    which the paths are seen from the current folder; a `Path` is never the name of a
    built-in spec. E0203 for values that the language
    cannot write.
    """
    # a Path is a path, also where its text is the name of a built-in spec
    named = spec if isinstance(spec, str) else explicit_path(str(spec))
    # no path has a line break that anybody means
    text = isinstance(spec, str) and "\n" in spec
    return open_spec(
        Source(WRITTEN, named) if text else named,
        config=str(config) if config else "",
        sets=[f"{name}={value}" for name, value in _texts("", given or {})],
        weights=weights,
        longest=longest,
    )


def _texts(
    prefix: str, given: Mapping[str, object], depth: int = 0
) -> Iterator[tuple[str, str]]:
    """Config values by dotted path, as the language writes them."""
    if depth > NESTING:
        fail(
            "E0203",
            f"values are nested more than {NESTING} deep",
            helps=["does a value hold itself?"],
        )
    for key, value in given.items():
        path = f"{prefix}{key}"
        if "=" in path:
            fail("E0407", f"`{shown(path)}` is no name of a config value")
        if isinstance(value, Mapping):
            yield from _texts(f"{path}.", value, depth + 1)
        else:
            yield path, _text(value, path)


def _text(value: object, path: str, depth: int = 0) -> str:
    """A Python value as the language writes it. E0203 for one that has no such form."""
    if depth > NESTING:
        fail(
            "E0203",
            f"the value of `{shown(path)}` is nested more than {NESTING} deep",
            helps=["does it hold itself?"],
        )
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case str():
            return value
        case list() | tuple():
            return f"[{', '.join(_text(item, path, depth + 1) for item in value)}]"
        case Integral():
            return str(int(value))
        case Real() if math.isfinite(value):
            return repr(float(value))
    fail(
        "E0203",
        f"`{shown(path)}` cannot be set to {shown(repr(value))[:60]}",
        helps=["give a number, a truth, a text, a list or none"],
    )
