"""Check arguments of the Python API; open specs given as path, name or text."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

from specc.diagnostics.diagnostic import Diagnostic, Failed, raise_error
from specc.diagnostics.source import Source
from specc.driver.compile_options import CompileOptions
from specc.driver.quantize_section import CACHES, HEADS, NONE, QuantizeOptions
from specc.driver.spec_loader import OpenedSpec, open_spec
from specc.io.safe_read import escape_text
from specc.library.spec_files import make_explicit_path
from specc.syntax.parse import translate_advice
from specc.syntax.source_limits import MAX_NESTING
from specc.transforms.quantization_plan import QUANTIZATION_KINDS as ROUNDED

WAYS = ("link", "copy", "inline")
"""Values of `weights_as`; empty chooses the best."""


STORED = ("f32", "f16", "bf16")
"""Storage dtypes of matrices; empty keeps that of the checkpoint."""


class ArgumentKind(NamedTuple):
    """Kind of argument: its description and a predicate."""

    words: str
    fits: Callable[[object], bool]


def _is_path(value: object) -> bool:
    # bytes are paths too, but file names are shown in messages, so they must be str
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return isinstance(value, str)


def _is_int(value: object) -> bool:
    # bool is an Integral; nobody means the seed 1 by True
    return not isinstance(value, bool) and isinstance(value, Integral)


def _is_nonnegative_int(value: object) -> bool:
    return not isinstance(value, bool) and value in range(2**31)


def _is_texts(value: object) -> bool:
    # a str is a sequence of str as well
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str | bytes)
        and all(isinstance(item, str) for item in value)
    )


PATH = ArgumentKind("a path (str or `Path`)", _is_path)
TEXT = ArgumentKind("a string", lambda value: isinstance(value, str))
INTEGER = ArgumentKind("an integer", _is_int)
BOOLEAN = ArgumentKind("True or False", lambda value: isinstance(value, bool))
SEED = ArgumentKind("None or an integer", lambda value: value is None or _is_int(value))
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
        "None or a mapping of config names to values",
        lambda value: value is None or isinstance(value, Mapping),
    ),
    "target": TEXT,
    "graph": TEXT,
    "io_names": TEXT,
    "execution_provider": TEXT,
    "opset": INTEGER,
    "context_length": ArgumentKind("a number of tokens, or 0", _is_nonnegative_int),
    "threads": INTEGER,
    "quantize_exclude": ArgumentKind("a list of strings", _is_texts),
    "quantize": ArgumentKind(
        "one of " + ", ".join(f'"{kind}"' for kind in (*ROUNDED, NONE)),
        lambda value: isinstance(value, str) and value in ("", *ROUNDED, NONE),
    ),
    "group_size": ArgumentKind("None or an integer", lambda v: v is None or _is_int(v)),
    "lm_head_bits": ArgumentKind(
        'one of 8, 4, "none"', lambda v: isinstance(v, int | str) and str(v) in ("", *HEADS)
    ),
    "quantize_all": BOOLEAN,
    "fold_norms": BOOLEAN,
    "calibration_samples": ArgumentKind(
        "None or a number of sequences", lambda v: v is None or _is_nonnegative_int(v)
    ),
    "calibration_data": PATH,
    "kv_cache": ArgumentKind(
        "one of " + ", ".join(f'"{kind}"' for kind in CACHES),
        lambda value: isinstance(value, str) and value in ("", *CACHES),
    ),
    "dtype": ArgumentKind(
        "one of " + ", ".join(f'"{kind}"' for kind in STORED),
        lambda value: isinstance(value, str) and value in ("", *STORED),
    ),
    "taps": ArgumentKind("a list of strings", _is_texts),
    "weights_as": ArgumentKind(
        "one of " + ", ".join(f'"{way}"' for way in WAYS),
        lambda value: isinstance(value, str) and value in ("", "auto", *WAYS),
    ),
    "inline_defaults": BOOLEAN,
    "for_quantizers": BOOLEAN,
    "force": BOOLEAN,
}
"""Expected kind of each argument of `check`, `compile` and `load`."""


def check_arguments(**given: object) -> None:
    """Raise E0820 for every argument of `KINDS` that is not of its kind."""
    known = {name: value for name, value in given.items() if name in KINDS}
    wrong = [name for name, value in known.items() if not KINDS[name].fits(value)]
    if wrong:
        raise Failed(*(_build_wrong_kind(name, given[name]) for name in wrong))


def _build_wrong_kind(name: str, value: object) -> Diagnostic:
    # a repr may be arbitrarily long
    shown = escape_text(repr(value))[:60]
    return Diagnostic("E0820", f"`{name}` is {KINDS[name].words}, not {shown}")


def compile_options(given: Mapping[str, Any], parts: tuple[str, ...]) -> CompileOptions:
    """Return the options of `compile` from checked arguments; `parts` are the graphs of a
    package.
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
        defaults_inside=given["inline_defaults"],
        parts=parts,
        names=given["io_names"],
        settings=dict(given["generation_config"] or {}),
        precision=_quantize_options(given),
        for_quantizers=given["for_quantizers"],
        force=given["force"],
    )


def _quantize_options(given: Mapping[str, Any]) -> QuantizeOptions:
    """Return the quantization options. False is the default: then the spec decides."""
    group_size, samples = given["group_size"], given["calibration_samples"]
    return QuantizeOptions(
        quantize=given["quantize"],
        quantize_exclude=tuple(given["quantize_exclude"]),
        group_size=None if group_size is None else int(group_size),
        lm_head_bits=str(given["lm_head_bits"]),
        quantize_all=given["quantize_all"] or None,
        calibration_samples=None if samples is None else int(samples),
        calibration_data=str(given["calibration_data"] or ""),
        kv_cache=given["kv_cache"],
        fold_norms=given["fold_norms"] or None,
    )


WRITTEN = "<spec>"
"""Name of a spec given as text, in messages."""


@contextmanager
def errors_in_spec_syntax() -> Iterator[None]:
    """Translate the advice of errors into the syntax of the spec's file, as the CLI does."""
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
    """Open a spec with the config values `given`.

    A string of several lines is the text of a spec, whose paths are relative to the current
    directory; a `Path` is never the name of a built-in spec. Raise E0203 for values that
    have no literal in the language.
    """
    # a Path is never a name, even if it equals that of a built-in spec
    named = spec if isinstance(spec, str) else make_explicit_path(str(spec))
    # no real path contains a line break
    text = isinstance(spec, str) and "\n" in spec
    return open_spec(
        Source(WRITTEN, named) if text else named,
        config=str(config) if config else "",
        sets=[f"{name}={value}" for name, value in _config_literals("", given or {})],
        weights=weights,
        longest=longest,
    )


def _config_literals(
    prefix: str, given: Mapping[str, object], depth: int = 0
) -> Iterator[tuple[str, str]]:
    """Yield config values by dotted path, as literals of the language."""
    if depth > MAX_NESTING:
        raise_error(
            "E0203",
            f"values are nested more than {MAX_NESTING} deep",
            helps=["does a value contain itself?"],
        )
    for key, value in given.items():
        path = f"{prefix}{key}"
        if "=" in path:
            raise_error("E0407", f"`{escape_text(path)}` is no name of a config value")
        if isinstance(value, Mapping):
            yield from _config_literals(f"{path}.", value, depth + 1)
        else:
            yield path, _format_literal(value, path)


def _format_literal(value: object, path: str, depth: int = 0) -> str:
    """Return a Python value as a literal of the language. Raise E0203 if it has none."""
    if depth > MAX_NESTING:
        raise_error(
            "E0203",
            f"the value of `{escape_text(path)}` is nested more than {MAX_NESTING} deep",
            helps=["does it contain itself?"],
        )
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case str():
            # a string alone may be an expression; the items of a list are strings
            return value if depth == 0 else json.dumps(value, ensure_ascii=False)
        case list() | tuple():
            return f"[{', '.join(_format_literal(item, path, depth + 1) for item in value)}]"
        case Integral():
            return str(int(value))
        case Real() if math.isfinite(value):
            return repr(float(value))
    raise_error(
        "E0203",
        f"`{escape_text(path)}` cannot be set to {escape_text(repr(value))[:60]}",
        helps=["give a number, a bool, a string, a list or none"],
    )
