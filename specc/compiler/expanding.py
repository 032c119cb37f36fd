"""`specc expand`: a spec as one that stands alone, once it is known to mean the same."""

from specc.compiler.spec import Spec, elaborated, open_spec
from specc.elaborate.standing_alone import merged, standing_alone
from specc.ir.write import write as as_text
from specc.lang import tree
from specc.lang.dsl.write import write
from specc.text.diagnostic import Failed
from specc.text.source import Source


def expanded(spec: Spec) -> tuple[tree.File, tuple[str, ...]]:
    """The spec alone in one file, and what had to stay outside. Its graph is that of the
    spec, node for node; where names of std would mean something else in it, they stay in
    std. E0982 for values that only an instance can give.
    """
    wanted = _meant(spec)
    for file, told in (
        (standing_alone(spec.program, spec.library), ()),
        (
            merged(spec.program),
            ("what it takes of std stays there: names would clash",),
        ),
    ):
        if _meant_by(file, spec) == wanted:
            return file, told
    raise AssertionError(f"{spec.program.name} alone is another model")


def _meant(spec: Spec) -> str:
    model = elaborated(spec)
    graphs = (model.graph, *((model.defaults,) if model.defaults else ()))
    return as_text(*graphs)


def _meant_by(file: tree.File, spec: Spec) -> str:
    """What a file means where the spec lies; nothing where it is none."""
    home = spec.program.module.path
    try:
        return _meant(open_spec(Source(home, write(file)), library=spec.library))
    except Failed:
        return ""
