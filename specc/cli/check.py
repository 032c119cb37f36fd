"""Check a spec without weights: every length a symbol first, then with the config's numbers."""

from argparse import ArgumentParser, Namespace

from specc.cli import messages
from specc.cli.spec_options import spec_arguments, spec_of
from specc.compiler.spec import Checked, Spec, check
from specc.compiler.ties import own_parameters, with_ties
from specc.ir.model import Model
from specc.passes.prove.facts import Report, report
from specc.text.diagnostic import Failed


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    spec_arguments(parser)


def run(given: Namespace) -> int:
    """Print what holds; warnings go to stderr."""
    spec = spec_of(given)
    found = check(spec, given.graph)
    model = found.model or found.trials[0].model
    proved = _proved(model)
    if proved.errors:
        raise Failed(*proved.errors)
    messages.report([*found.warnings, *proved.warnings], given.format, given.color)
    if messages.answer("check", _told(spec, found, proved)):
        return 0
    messages.done(f"{spec.program.name}: ok")
    for line in (*_tried(spec, found), *proved.lines()):
        messages.done(f"  {line}")
    return 0


def _told(spec: Spec, found: Checked, proved: Report) -> dict[str, object]:
    """What holds, for programs."""
    axes = [
        {"axis": each.symbol, "causal": each.causal, "why": each.why}
        for each in proved.others
    ]
    if proved.growing:
        axes.insert(0, {"axis": proved.growing, "causal": proved.causal, "why": ""})
    return {
        "model": spec.program.name,
        "tried": _trials(found),
        "parameters": _parameters(spec, found),
        "missing": [missing.title for missing in found.missing],
        "notes": list(spec.remarks),
        "axes": axes,
        "batch": proved.batch,
        "apart": proved.apart,
        "padding": list(proved.padded),
    }


def _trials(found: Checked) -> list[str]:
    """The values that were tried in turn, `layers = 2`."""
    return sorted({f"{k} = {v}" for t in found.trials for k, v in t.values.items()})


def _parameters(spec: Spec, found: Checked) -> int | None:
    """How many numbers the weights have with this config, where it says enough."""
    if found.model is None:
        return None
    model = with_ties(spec.program, spec.library, spec.reader, found.model)
    return own_parameters(model.graph).number or 0


def _proved(model: Model) -> Report:
    """What is proved of a model as it is used: written with, streamed, or run at once."""
    if (written := model.generation) is not None:
        return report(model.graph, written.growing, written.source, model.defaults)
    if (stream := model.streaming) is not None:
        return report(
            model.graph,
            stream.growing,
            defaults=model.defaults,
            streamed=stream.sources,
        )
    return report(model.graph)


def _tried(spec: Spec, found: Checked) -> list[str]:
    tried = _trials(found)
    lines = [
        "shapes hold for every size" + (f" (tried {', '.join(tried)})" if tried else "")
    ]
    if (count := _parameters(spec, found)) is not None:
        lines.append(f"with this config: {count:,} parameters".replace(",", " "))
    for missing in found.missing:
        lines.append(f"not checked with numbers: {missing.title}")
    return lines
