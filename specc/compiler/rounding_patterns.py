"""Patterns of weights in a spec's `quantize { … }` and in options: do they name something?"""

import re
from collections.abc import Callable, Iterable, Mapping

from specc.files.read import shown
from specc.ir.graph import Graph
from specc.passes import pipeline
from specc.passes.quantize.plan import names_of, unmatched
from specc.text.diagnostic import Diagnostic, Failed, Label
from specc.text.source import Span
from specc.text.suggest import suggest

NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.|$)")
"""The number of a layer in the name of a weight."""


def check_matched(
    missing: Iterable[str],
    names: tuple[str, ...],
    places: Mapping[str, Span],
    others: Callable[[], Iterable[Graph]],
) -> None:
    """E0850 for the patterns that are `missing` among the `names` of a graph. One that the
    spec has at one of `places` may be for another graph of the spec.
    """
    missing = tuple(missing)
    spec_s = [pattern for pattern in missing if pattern in places]
    for other in others() if spec_s else ():
        elsewhere = names_of(pipeline.simplify(other, fused=False))
        spec_s = list(unmatched(spec_s, elsewhere))
    wrong = [p for p in missing if p in spec_s or p not in places]
    if wrong:
        raise Failed(*(_names_nothing(p, names, places.get(p)) for p in wrong))


def _names_nothing(pattern: str, names: tuple[str, ...], at: Span | None) -> Diagnostic:
    known = f"there are {', '.join(names[:8])} …"
    # who writes patterns means all layers: `h.*.attn` is near where `h.0.attn` is not
    near = dict.fromkeys((*names, *(NUMBER.sub("*", name) for name in names)))
    return Diagnostic(
        "E0850",
        f"`{shown(pattern)}` names no weight and no part of the model",
        Label(at, "this pattern") if at else None,
        helps=tuple(suggest(pattern, near, known)),
    )
