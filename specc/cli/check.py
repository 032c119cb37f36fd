"""Check a spec without weights: every length a symbol first, then with the config's numbers."""

from argparse import ArgumentParser, Namespace

from specc.cli import messages
from specc.cli.spec_options import spec_arguments, spec_of
from specc.compiler.spec import Checked, Spec, check
from specc.compiler.ties import own_parameters, with_ties
from specc.passes.prove.facts import report
from specc.text.diagnostic import Failed


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    spec_arguments(parser)


def run(given: Namespace) -> int:
    """Print what holds; warnings go to stderr."""
    spec = spec_of(given)
    found = check(spec, given.graph)
    model = found.model or found.trials[0].model
    grows = model.generation
    proved = (
        report(model.graph, grows.growing, grows.source, model.defaults)
        if grows
        else report(model.graph)
    )
    if proved.errors:
        raise Failed(*proved.errors)
    messages.report([*found.warnings, *proved.warnings], given.format, given.color)
    if given.format in messages.PROGRAMS:
        return 0
    print(f"{spec.program.name}: ok")
    for line in (*_tried(spec, found), *proved.lines()):
        print(f"  {line}")
    return 0


def _tried(spec: Spec, found: Checked) -> list[str]:
    tried = sorted({f"{k} = {v}" for t in found.trials for k, v in t.values.items()})
    lines = [
        "shapes hold for every size" + (f" (tried {', '.join(tried)})" if tried else "")
    ]
    if found.model is not None:
        model = with_ties(spec.program, spec.library, spec.reader, found.model)
        count = own_parameters(model.graph).number or 0
        lines.append(f"with this config: {count:,} parameters".replace(",", " "))
    for missing in found.missing:
        lines.append(f"not checked with numbers: {missing.title}")
    return lines
