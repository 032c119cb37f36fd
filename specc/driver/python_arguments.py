"""Check arguments of the Python API and open specs named by path, name or text."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

from specc.diagnostics.diagnostic import Diagnostic, Failed, raise_error
from specc.diagnostics.source import Source
from specc.driver.compile_job import CompileOptions
from specc.driver.quantize_section import CACHES, HEADS, NONE, QuantizeOptions
from specc.driver.spec_loader import OpenedSpec, open_spec
from specc.io.safe_read import escape_text
from specc.library.spec_files import make_explicit_path
from specc.syntax.parse import translate_advice
from specc.syntax.source_limits import MAX_NESTING
from specc.transforms.quantization_plan import QUANTIZATION_KINDS as ROUNDED

WAYS = ("link", "copy", "inline")
"""Where weights may be; nothing said is what fits."""


STORED = ("f32", "f16", "bf16")
"""The types that matrices are stored in; nothing said is that of the checkpoint."""


class ArgumentKind(NamedTuple):
    """What an argument may be: in words, and the test of it."""

    words: str
    fits: Callable[[object], bool]


def _is_path(value: object) -> bool:
    # bytes would be a path too; but names of files are shown, so they are texts here
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return isinstance(value, str)


def _is_int(value: object) -> bool:
    # Python's `True` is a number; nobody means the seed 1 by it
    return not isinstance(value, bool) and isinstance(value, Integral)


def _is_nonnegative_int(value: object) -> bool:
    return not isinstance(value, bool) and value in range(2**31)


def _is_texts(value: object) -> bool:
    # a text is a sequence of texts as well, of its letters
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str | bytes)
        and all(isinstance(item, str) for item in value)
    )


PATH = ArgumentKind("a path, as a text or a `Path`", _is_path)
TEXT = ArgumentKind("a text", lambda value: isinstance(value, str))
INTEGER = ArgumentKind("a whole number", _is_int)
BOOLEAN = ArgumentKind("True or False", lambda value: isinstance(value, bool))
SEED = ArgumentKind("None or a whole number", lambda value: value is None or _is_int(value))
KINDS = {
    "spec": PATH,
    "model": PATH,
    "output": PATH,
    "weights": PATH,
    "adapter": PATH,
    "config": PATH,
    "init": SEED,
    "init_missing": SEED,
    "set": ArgumentKind(
        "None or a mapping of config values by name",
        lambda value: value is None or isinstance(value, Mapping),
    ),
    "target": TEXT,
    "graph": TEXT,
    "names": TEXT,
    "provider": TEXT,
    "opset": INTEGER,
    "context": ArgumentKind("a number of tokens, or 0", _is_nonnegative_int),
    "threads": INTEGER,
    "keep": ArgumentKind("a list of texts", _is_texts),
    "quantize": ArgumentKind(
        "one of " + ", ".join(f'"{kind}"' for kind in (*ROUNDED, NONE)),
        lambda value: isinstance(value, str) and value in ("", *ROUNDED, NONE),
    ),
    "block": ArgumentKind("None or a whole number", lambda v: v is None or _is_int(v)),
    "quantize_head": ArgumentKind(
        "one of " + ", ".join(f'"{kind}"' for kind in HEADS),
        lambda value: isinstance(value, str) and value in ("", *HEADS),
    ),
    "quantize_all": BOOLEAN,
    "fold_norms": BOOLEAN,
    "samples": ArgumentKind(
        "None or a number of texts", lambda v: v is None or _is_nonnegative_int(v)
    ),
    "calibrate": PATH,
    "cache": ArgumentKind(
        "one of " + ", ".join(f'"{kind}"' for kind in CACHES),
        lambda value: isinstance(value, str) and value in ("", *CACHES),
    ),
    "dtype": ArgumentKind(
        "one of " + ", ".join(f'"{kind}"' for kind in STORED),
        lambda value: isinstance(value, str) and value in ("", *STORED),
    ),
    "taps": ArgumentKind("a list of texts", _is_texts),
    "weights_as": ArgumentKind(
        "one of " + ", ".join(f'"{way}"' for way in WAYS),
        lambda value: isinstance(value, str) and value in ("", "auto", *WAYS),
    ),
    "defaults_inside": BOOLEAN,
    "for_quantizers": BOOLEAN,
    "force": BOOLEAN,
}
"""What each argument of `check`, `compile` and `load` may be."""


def check_arguments(**given: object) -> None:
    """Fails with E0820 for every argument of `KINDS` that is not of its kind."""
    known = {name: value for name, value in given.items() if name in KINDS}
    wrong = [name for name, value in known.items() if not KINDS[name].fits(value)]
    if wrong:
        raise Failed(*(_not_of_its_kind(name, given[name]) for name in wrong))


def _not_of_its_kind(name: str, value: object) -> Diagnostic:
    # anything has a `repr`, which may be as long as it likes
    said = escape_text(repr(value))[:60]
    return Diagnostic("E0820", f"`{name}` is {KINDS[name].words}, not {said}")


def compile_options(given: Mapping[str, Any], parts: tuple[str, ...]) -> CompileOptions:
    """What `compile` is told, of arguments that are of their kinds; `parts` are the graphs
    of a package.
    """
    weights, init, missing = (given[n] for n in ("weights", "init", "init_missing"))
    return CompileOptions(
        output=os.fspath(given["output"]),
        weights=str(weights) if weights else "",
        adapter=str(given["adapter"]) if given["adapter"] else "",
        init=None if init is None else int(init),
        init_missing=None if missing is None else int(missing),
        target=given["target"],
        opset=int(given["opset"]),
        taps=tuple(given["taps"]),
        graph=given["graph"],
        weights_as=given["weights_as"],
        dtype=given["dtype"],
        defaults_inside=given["defaults_inside"],
        parts=parts,
        names=given["names"],
        settings=dict(given["settings"] or {}),
        precision=_rounding_of(given),
        for_quantizers=given["for_quantizers"],
        force=given["force"],
    )


def _rounding_of(given: Mapping[str, Any]) -> QuantizeOptions:
    """What is said of rounding. False is what nobody says: the spec then decides."""
    return QuantizeOptions(
        kind=given["quantize"],
        keep=tuple(given["keep"]),
        block=None if given["block"] is None else int(given["block"]),
        head=given["quantize_head"],
        every=given["quantize_all"] or None,
        fold=given["fold_norms"] or None,
        samples=None if given["samples"] is None else int(given["samples"]),
        calibrate=str(given["calibrate"]) if given["calibrate"] else "",
        cache=given["cache"],
    )


WRITTEN = "<spec>"
"""What messages call a spec that is given as its text."""


@contextmanager
def errors_in_spec_syntax() -> Iterator[None]:
    """What is wrong with a spec is said in the syntax of its file, as on the command line."""
    try:
        yield
    except Failed as failed:
        raise Failed(*translate_advice(failed.diagnostics)) from failed.__cause__


def open_spec_argument(
    spec: str | Path,
    *,
    config: str | Path = "",
    given: Mapping[str, object] | None = None,
    weights: str = "",
    longest: int = 0,
) -> OpenedSpec:
    """The spec, with the config values that are `given`. Several lines are its text, of
    which the paths are seen from the current folder; a `Path` is never the name of a
    built-in spec. E0203 for values that the language
    cannot write.
    """
    # a Path is a path, also where its text is the name of a built-in spec
    named = spec if isinstance(spec, str) else make_explicit_path(str(spec))
    # no path has a line break that anybody means
    text = isinstance(spec, str) and "\n" in spec
    return open_spec(
        Source(WRITTEN, named) if text else named,
        config=str(config) if config else "",
        sets=[f"{name}={value}" for name, value in _texts("", given or {})],
        weights=weights,
        longest=longest,
    )


def _texts(prefix: str, given: Mapping[str, object], depth: int = 0) -> Iterator[tuple[str, str]]:
    """Config values by dotted path, as the language writes them."""
    if depth > MAX_NESTING:
        raise_error(
            "E0203",
            f"values are nested more than {MAX_NESTING} deep",
            helps=["does a value hold itself?"],
        )
    for key, value in given.items():
        path = f"{prefix}{key}"
        if "=" in path:
            raise_error("E0407", f"`{escape_text(path)}` is no name of a config value")
        if isinstance(value, Mapping):
            yield from _texts(f"{path}.", value, depth + 1)
        else:
            yield path, _text(value, path)


def _text(value: object, path: str, depth: int = 0) -> str:
    """A Python value as the language writes it. E0203 for one that has no such form."""
    if depth > MAX_NESTING:
        raise_error(
            "E0203",
            f"the value of `{escape_text(path)}` is nested more than {MAX_NESTING} deep",
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
    raise_error(
        "E0203",
        f"`{escape_text(path)}` cannot be set to {escape_text(repr(value))[:60]}",
        helps=["give a number, a truth, a text, a list or none"],
    )
