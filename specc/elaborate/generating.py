"""What a spec's `generate` says, as plain data, with every wrong word and value an
error at its place.

With symbols in place of config values, names are checked all the same, and so is every
value that needs none.
"""

from dataclasses import replace

from specc.decode.option_faults import Vocabulary, spec_faults
from specc.elaborate.context import Context, Env
from specc.elaborate.data import described
from specc.elaborate.needs import NeedsValue
from specc.ir.graph import Graph
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed
from specc.text.source import Span


def vocabulary_of(graph: Graph, growing: str, source: str) -> Vocabulary:
    """How many tokens the input that grows takes, and how many the result is drawn from."""
    below, drawn = graph.input_facts[growing].below, graph.outputs[source].type.shape
    return Vocabulary(
        below.number if below is not None else None, drawn[-1].number if drawn else None
    )


def generation_settings(
    context: Context, item: tree.Generate, env: Env, vocabulary: Vocabulary
) -> tuple[dict[str, object], tuple[Diagnostic, ...]]:
    """The settings of one `generate`, and warnings. Fails with every fault found:
    E0731, E0732, E0733.
    """
    made: dict[str, object] = {}
    spans: dict[str, Span | None] = {}
    for setting in item.settings:
        spans[f"{setting.name} name"] = setting.span
        spans[setting.name] = setting.value.span or setting.span
        if isinstance(setting.value, tree.Call):
            made[setting.name] = _call(context, setting.name, setting.value, env, spans)
        else:
            made[setting.name] = _known(context, setting.value, env)
    faults = spec_faults(made, spans, item.span)
    # past the vocabulary: told only of settings that are sound by themselves
    beyond = {
        w: d
        for w in made
        if not faults and (d := vocabulary.beyond(w, made[w], spans[w]))
    }
    warnings = [
        replace(d, code="W0755", severity="warning")
        for d in [beyond.pop("stop", None)]
        if d
    ]
    if faults or beyond:
        raise Failed(*faults, *beyond.values())
    return made, tuple(warnings)


def _call(
    context: Context,
    name: str,
    call: tree.Call,
    env: Env,
    spans: dict[str, Span | None],
) -> dict[str, object]:
    """`beam(width=4)` as `{"kind": "beam", "width": 4}`, with the places of its parts
    in `spans`.
    """
    spans[f"{name} name"] = call.function.span or call.span
    made: dict[str, object] = {"kind": call.function.path}
    if call.args:
        made["args"] = [_known(context, a, env) for a in call.args]
    for option in call.options:
        spans[f"{name}.{option.name}"] = option.value.span or option.span
        spans[f"{name}.{option.name} name"] = option.name_span or option.span
        made[option.name] = _known(context, option.value, env)
    return made


def _known(context: Context, expr: tree.Expr, env: Env) -> object:
    """An expression as data; None where it hangs on config values that are still symbols."""
    try:
        return described(context, expr, env)
    except NeedsValue:
        if not context.symbolic:
            raise
        return None
