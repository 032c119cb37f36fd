"""A model that decodes itself: what is computed once, then an ONNX `Loop` around the
step; tokens in, tokens out.

The step is lowered by the same rules as any graph, into the loop's body: the first time
round it takes the whole prompt, then one token a row. Caches grow as carries (a loop
copies none, and nothing in a body is updated in place, so buffers of fixed size would
be copied whole at every token). Weights, what `encode` hands over and what follows from
these alone stay in the main graph, where the body sees them.
"""

from collections.abc import Mapping
from typing import NoReturn

from specc.ir.derived import Generating
from specc.ir.target import Target
from specc.ir.types import Type
from specc.text.diagnostic import fail
from specc_onnx.emit.build import Built, enter_parameters, finished
from specc_onnx.generate.body import Turn, body_of
from specc_onnx.generate.deciding import Start, strategy
from specc_onnx.generate.decoding import MAX_TOKENS, scalars_of
from specc_onnx.generate.hoist import hoist
from specc_onnx.generate.ingredients import Ingredients
from specc_onnx.generate.prompt import (
    compute_once,
    feed,
    first_logits,
    first_side,
    first_state,
    handed_over,
    kept_rows,
    without_tokens,
)
from specc_onnx.generate.work import Work
from specc_onnx.lower import legal
from specc_onnx.lower.arrange import cast
from specc_onnx.lower.emitter import Emitter, Site, Tensor, unique
from specc_onnx.lower.lengths import Lengths


def build_generating(
    whole: Generating,
    target: Target,
    opset: int = legal.USUAL,
    stored: Mapping[str, str] | None = None,
    ties: Mapping[str, str] | None = None,
) -> Built:
    """The model that decodes itself; `stored` and `ties` as `specc_onnx.emit.build`
    takes them.

    Its inputs are those of `Ingredients.inputs`, of which those of
    `Ingredients.optional` may be left out, then `scalars_of`; its outputs `tokens` and
    `log_probs`, or `tokens` and `scores` for beam search. One whose name is taken by an
    input of the spec is numbered: `tokens_2`.
    """
    legal.check_opset(opset)
    ingredients = Ingredients.of(whole)
    work = _work(ingredients, target, opset)
    g = work.g
    weights = enter_parameters(g, ingredients.parameters, stored or {}, ties or {})
    # Said before anything is written: there is no value for such an input in the loop.
    for name in work.sides:
        if not work.whole.graph.input_facts[name].keep:
            _unknown(name, work.derived.growing)
    compute_once(work)
    turn = _turn(work)
    body = body_of(work, turn)
    g.site = Site(("generate",))
    # A batch of no rows has no newest token to look at: the loop is not entered at all,
    # and what its carries start as are the results.
    some = g.node("Greater", g.dim(work.batch), g.constant(0, "i64"))
    firsts = (c.first for c in turn.carries)
    last = g.nodes(
        "Loop",
        len(turn.carries),
        work.scalars[MAX_TOKENS],
        some,
        *firsts,
        body=body,
    )
    outputs = turn.chooser.outputs(g, last[len(turn.feed) + len(turn.states) :])
    inputs = _inputs(work)
    taken = set(inputs)
    named = {unique(n, taken): t for n, t in outputs.items()}
    return finished(g, work.whole.graph, inputs, named, weights)


def _work(whole: Ingredients, target: Target, opset: int) -> Work:
    """What is known before the first node is written."""
    graph, derived, decoding = whole.graph, whole.derived, whole.decoding
    types = dict(whole.inputs)
    taken = set(types)
    # An input of the spec may be called `seed` or `max_tokens` too, and keeps its name.
    scalars = {name: unique(name, taken) for name in scalars_of(decoding)}
    # An input that may be left out tells no length: its shape is that of nothing then.
    told = {n: t for n, t in types.items() if n not in whole.optional}
    lengths = Lengths(told, graph.facts, graph.least)
    shape = graph.inputs[derived.growing].type.shape
    assert len(shape) == 2, f"{derived.growing} is no row of tokens for each text"
    batch = shape[0]
    beams = decoding.beams if decoding.strategy == "beam" else 1
    handed = (derived.step.inputs[n].type for n in derived.handed)
    fixed = any(batch in t.shape for t in handed)
    return Work(
        whole=whole,
        g=Emitter(target, opset, lengths, {*types, *scalars.values()}, home=graph.name),
        types=types,
        scalars=scalars,
        outer={n: Tensor(n, t) for n, t in types.items()},
        batch=batch,
        repeats=beams if fixed else 1,
    )


def _turn(work: Work) -> Turn:
    """What goes round in the loop, with the first values of all of it in the main graph."""
    g = work.g
    fed = [feed(work), *(first_side(work, name) for name in work.sides)]
    states = [first_state(work, s) for s in work.derived.states]
    handed = {n: handed_over(work, n) for n in work.derived.handed}
    logits = work.derived.step.outputs[work.decoding.source].type
    vocabulary = logits.shape[-1].number
    assert vocabulary is not None, "the number of tokens is known"
    g.site = Site(("choose",))
    prompt = cast(g, fed[0].first, fed[0].type.dtype, "i64")
    start = Start(
        batch=work.batch,
        vocabulary=vocabulary,
        rows=work.rows,
        scalars=work.scalars,
        prompt=prompt,
        keep=kept_rows(work),
    )
    chooser = strategy(g, work.decoding, start)
    first = first_logits(work)
    return Turn(
        feed=fed,
        states=states,
        chooser=chooser,
        handed=handed,
        hoisted=hoist(work, handed),
        first=first,
        empty=None if first is None else without_tokens(work),
    )


def _inputs(work: Work) -> dict[str, Type]:
    """The inputs of the model: the spec's, then the scalars."""
    scalars = scalars_of(work.decoding).items()
    return {**work.types, **{work.scalars[n]: Type(t, ()) for n, t in scalars}}


def _unknown(name: str, growing: str) -> NoReturn:
    fail(
        "E0944",
        f"nothing says what `{name}` is for the rows of `{growing}` that are written",
        notes=[
            "inside a model that decodes by itself only an input that says which rows "
            "exist is known"
        ],
        helps=[f"give it a default in the spec: `{name}: … = expression of {growing}`"],
    )
