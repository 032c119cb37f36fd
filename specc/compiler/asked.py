"""What a caller in Python asks for: every argument is of its kind, or it is named.

The command line cannot give anything else. Python can give anything, and much that is
not meant would pass for something else: `force="no"` is true, `taps="a"` a sequence.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

from specc.compiler.job import Options
from specc.compiler.rounding import CACHES, HEADS, NONE, Asked
from specc.files.read import shown
from specc.passes.quantize.plan import KINDS as ROUNDED
from specc.text.diagnostic import Diagnostic, Failed

WAYS = ("link", "copy", "inline")
"""Where weights may be; nothing said is what fits."""


STORED = ("f32", "f16", "bf16")
"""The types that matrices are stored in; nothing said is that of the checkpoint."""


class Kind(NamedTuple):
    """What an argument may be: in words, and the test of it."""

    words: str
    fits: Callable[[object], bool]


def _is_path(value: object) -> bool:
    # bytes would be a path too; but names of files are shown, so they are texts here
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return isinstance(value, str)


def _is_whole(value: object) -> bool:
    # Python's `True` is a number; nobody means the seed 1 by it
    return not isinstance(value, bool) and isinstance(value, Integral)


def _is_length(value: object) -> bool:
    return not isinstance(value, bool) and value in range(2**31)


def _is_texts(value: object) -> bool:
    # a text is a sequence of texts as well, of its letters
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str | bytes)
        and all(isinstance(item, str) for item in value)
    )


PATH = Kind("a path, as a text or a `Path`", _is_path)
TEXT = Kind("a text", lambda value: isinstance(value, str))
WHOLE = Kind("a whole number", _is_whole)
TRUTH = Kind("True or False", lambda value: isinstance(value, bool))
SEED = Kind("None or a whole number", lambda value: value is None or _is_whole(value))
KINDS = {
    "spec": PATH,
    "model": PATH,
    "output": PATH,
    "weights": PATH,
    "adapter": PATH,
    "config": PATH,
    "init": SEED,
    "init_missing": SEED,
    "set": Kind(
        "None or a mapping of config values by name",
        lambda value: value is None or isinstance(value, Mapping),
    ),
    "target": TEXT,
    "graph": TEXT,
    "names": TEXT,
    "provider": TEXT,
    "opset": WHOLE,
    "context": Kind("a number of tokens, or 0", _is_length),
    "threads": WHOLE,
    "keep": Kind("a list of texts", _is_texts),
    "quantize": Kind(
        "one of " + ", ".join(f'"{kind}"' for kind in (*ROUNDED, NONE)),
        lambda value: isinstance(value, str) and value in ("", *ROUNDED, NONE),
    ),
    "block": Kind("None or a whole number", lambda v: v is None or _is_whole(v)),
    "quantize_head": Kind(
        "one of " + ", ".join(f'"{kind}"' for kind in HEADS),
        lambda value: isinstance(value, str) and value in ("", *HEADS),
    ),
    "quantize_all": TRUTH,
    "fold_norms": TRUTH,
    "samples": Kind("None or a number of texts", lambda v: v is None or _is_length(v)),
    "calibrate": PATH,
    "cache": Kind(
        "one of " + ", ".join(f'"{kind}"' for kind in CACHES),
        lambda value: isinstance(value, str) and value in ("", *CACHES),
    ),
    "dtype": Kind(
        "one of " + ", ".join(f'"{kind}"' for kind in STORED),
        lambda value: isinstance(value, str) and value in ("", *STORED),
    ),
    "taps": Kind("a list of texts", _is_texts),
    "weights_as": Kind(
        "one of " + ", ".join(f'"{way}"' for way in WAYS),
        lambda value: isinstance(value, str) and value in ("", "auto", *WAYS),
    ),
    "defaults_inside": TRUTH,
    "for_quantizers": TRUTH,
    "force": TRUTH,
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
    said = shown(repr(value))[:60]
    return Diagnostic("E0820", f"`{name}` is {KINDS[name].words}, not {said}")


def options_of(given: Mapping[str, Any], parts: tuple[str, ...]) -> Options:
    """What `compile` is told, of arguments that are of their kinds; `parts` are the graphs
    of a package.
    """
    weights, init, missing = (given[n] for n in ("weights", "init", "init_missing"))
    return Options(
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


def _rounding_of(given: Mapping[str, Any]) -> Asked:
    """What is said of rounding. False is what nobody says: the spec then decides."""
    return Asked(
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
