"""Build a self-decoding model: encoder, then an ONNX `Loop` around the decode step.

The step is lowered by the same rules as any graph, into the loop's body: the first time
round it takes the whole prompt, then one token a row. Caches grow as carries (a loop
copies none, and nothing in a body is updated in place, so buffers of fixed size would
be copied whole at every token). Weights, what `encode` hands over and what follows from
these alone stay in the main graph, where the body sees them.
"""

from collections.abc import Mapping
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.ir.derived_graphs import SelfDecodingGraph
from specc.ir.target import Target
from specc.ir.types import Type
from specc_onnx.emit.onnx_graph import BuiltModel, add_parameters, finish_model
from specc_onnx.generate.decoding_strategies import StrategyInputs, make_strategy
from specc_onnx.generate.generation_context import (
    MAX_TOKENS_INPUT,
    GenerationContext,
    GenerationParts,
    list_scalar_inputs,
)
from specc_onnx.generate.generation_loop_body import (
    LoopIteration,
    build_generation_body,
    hoist_invariant_nodes,
)
from specc_onnx.generate.prefill import (
    find_empty_prompts,
    find_first_logits,
    find_prompt_mask,
    get_encoder_output,
    lower_encoder,
    make_mask_carry,
    make_prompt_carry,
    make_state_carry,
)
from specc_onnx.lower import onnx_targets
from specc_onnx.lower.dynamic_shapes import LengthResolver
from specc_onnx.lower.emitter import Emitter, make_unique_name
from specc_onnx.lower.emitter_state import LoweringSite, NameTable, Tensor
from specc_onnx.lower.tensor_helpers import emit_cast


def build_generation_model(
    whole: SelfDecodingGraph,
    target: Target,
    opset: int = onnx_targets.DEFAULT_OPSET,
    stored: Mapping[str, str] | None = None,
    ties: Mapping[str, str] | None = None,
) -> BuiltModel:
    """Build the self-decoding model; `stored` and `ties` as in `specc_onnx.emit.onnx_graph`.

    Its inputs are `GenerationParts.inputs`, of which `GenerationParts.optional` may be left
    out, then `list_scalar_inputs`; its outputs `tokens` and `log_probs`, or `tokens` and
    `scores` for beam search. A name that an input of the spec has already is numbered:
    `tokens_2`.
    """
    onnx_targets.check_opset(opset)
    ingredients = GenerationParts.of(whole)
    work = _make_generation_context(ingredients, target, opset)
    g = work.g
    weights = add_parameters(g, ingredients.parameters, stored or {}, ties or {})
    # Said before anything is written: there is no value for such an input in the loop.
    for name in work.sides:
        if not work.whole.graph.input_facts[name].keep:
            _raise_unknown_symbol(name, work.derived.growing)
    lower_encoder(work)
    turn = _make_loop_iteration(work)
    body = build_generation_body(work, turn)
    g.site = LoweringSite(("generate",))
    # A batch of no rows has no newest token to look at: the loop is not entered at all,
    # and what its carries start as are the results.
    some = g.node("Greater", g.dim(work.batch), g.constant(0, "i64"))
    firsts = (c.first for c in turn.carries)
    last = g.nodes(
        "Loop", len(turn.carries), work.scalars[MAX_TOKENS_INPUT], some, *firsts, body=body
    )
    outputs = turn.chooser.outputs(g, last[len(turn.feed) + len(turn.states) :])
    inputs = _list_model_inputs(work)
    taken = set(inputs)
    named = {make_unique_name(n, taken): t for n, t in outputs.items()}
    return finish_model(g, work.whole.graph, inputs, named, weights)


def _make_generation_context(
    whole: GenerationParts, target: Target, opset: int
) -> GenerationContext:
    """Return the context before any node is emitted."""
    graph, derived, decoding = whole.graph, whole.derived, whole.decoding
    types = dict(whole.inputs)
    taken = set(types)
    # An input of the spec may be called `seed` or `max_tokens` too, and keeps its name.
    scalars = {name: make_unique_name(name, taken) for name in list_scalar_inputs(decoding)}
    # An input that may be left out tells no length: its shape is that of nothing then.
    told = {n: t for n, t in types.items() if n not in whole.optional}
    lengths = LengthResolver(told, graph.facts, graph.least)
    shape = graph.inputs[derived.growing].type.shape
    assert len(shape) == 2, f"{derived.growing} is no row of tokens for each text"
    batch = shape[0]
    beams = decoding.num_beams if decoding.strategy == "beam" else 1
    handed = (derived.step.inputs[n].type for n in derived.handed)
    fixed = any(batch in t.shape for t in handed)
    return GenerationContext(
        whole=whole,
        g=Emitter(
            target=target,
            opset=opset,
            lengths=lengths,
            names=NameTable({*types, *scalars.values()}, graph=graph.name),
        ),
        types=types,
        scalars=scalars,
        outer={n: Tensor(n, t) for n, t in types.items()},
        batch=batch,
        repeats=beams if fixed else 1,
    )


def _make_loop_iteration(work: GenerationContext) -> LoopIteration:
    """Return the loop's carries, with initial values emitted into the main graph."""
    g = work.g
    fed = [make_prompt_carry(work), *(make_mask_carry(work, name) for name in work.sides)]
    states = [make_state_carry(work, s) for s in work.derived.states]
    handed = {n: get_encoder_output(work, n) for n in work.derived.handed}
    logits = work.derived.step.outputs[work.decoding.source].type
    vocabulary = logits.shape[-1].number
    assert vocabulary is not None, "the number of tokens is known"
    g.site = LoweringSite(("choose",))
    prompt = emit_cast(g, fed[0].first, fed[0].type.dtype, "i64")
    start = StrategyInputs(
        batch=work.batch,
        vocabulary=vocabulary,
        rows=work.rows,
        scalars=work.scalars,
        prompt=prompt,
        keep=find_prompt_mask(work),
    )
    chooser = make_strategy(g, work.decoding, start)
    first = find_first_logits(work)
    return LoopIteration(
        feed=fed,
        states=states,
        chooser=chooser,
        handed=handed,
        hoisted=hoist_invariant_nodes(work, handed),
        first=first,
        empty=None if first is None else find_empty_prompts(work),
    )


def _list_model_inputs(work: GenerationContext) -> dict[str, Type]:
    """Return the inputs of the model: the spec's, then the scalars."""
    scalars = list_scalar_inputs(work.decoding).items()
    return {**work.types, **{work.scalars[n]: Type(t, ()) for n, t in scalars}}


def _raise_unknown_symbol(name: str, growing: str) -> NoReturn:
    raise_error(
        "E0944",
        f"nothing says what `{name}` is for the rows of `{growing}` that are written",
        notes=[
            "inside a model that decodes by itself only an input that says which rows "
            "exist is known"
        ],
        helps=[f"give it a default in the spec: `{name}: … = expression of {growing}`"],
    )
