"""The graphs of a package as models: what is computed once, a step, a step with buffers
for caches, and the whole that decodes by itself.
"""

from collections.abc import Callable, Mapping

from specc.decode.settings import settings_of
from specc.ir.derived import Derived, Generating, InPlace
from specc.ir.model import Model
from specc.passes import pipeline
from specc_onnx import Built, build, build_generating, caches_of, target
from specc_onnx.emit.caches import build_in_place
from support.self_decoding import decoding_of


def derived_of(model: Model) -> Derived:
    """The model taken apart, as a package of our own names is."""
    assert model.generation
    return pipeline.derive(
        pipeline.Work(
            graph=pipeline.simplify(model.graph),
            defaults=model.defaults,
            generation=model.generation,
        )
    )


def packaged(model: Model, part: str, where: str, opset: int) -> Built | None:
    """One part in ONNX; None where the model has none."""
    return PARTS[part](model, where, opset)


def _score(model: Model, where: str, opset: int) -> Built:
    return build(pipeline.simplify(model.graph), target(where), opset)


def _encode(model: Model, where: str, opset: int) -> Built | None:
    encode = derived_of(model).encode
    return build(encode, target(where), opset) if encode else None


def _step(model: Model, where: str, opset: int) -> Built:
    return build(derived_of(model).step, target(where), opset)


def _buffers(model: Model, where: str, opset: int) -> Built | None:
    derived = derived_of(model)
    caches = caches_of(derived.step, derived.states, target(where), opset)
    if not caches:
        return None
    return build_in_place(InPlace(derived.step, caches), target(where), opset)


def _decoding(strategy: str) -> Callable[[Model, str, int], Built]:
    def made(model: Model, where: str, opset: int) -> Built:
        generation = model.generation
        assert generation
        said: Mapping[str, object] = (
            {"beams": 3, "n_best": 2} if strategy == "beam" else {}
        )
        chosen = settings_of(
            generation.settings, strategy=strategy, repetition_penalty=1.3, **said
        )
        decoding = decoding_of(chosen, generation.source, True)
        graph = pipeline.simplify(model.graph)
        whole = Generating(graph, derived_of(model), decoding, model.defaults)
        return build_generating(whole, target(where), opset)

    return made


PARTS: Mapping[str, Callable[[Model, str, int], Built | None]] = {
    "score": _score,
    "encode": _encode,
    "step": _step,
    "buffers": _buffers,
    "greedy": _decoding("greedy"),
    "sample": _decoding("sample"),
    "beam": _decoding("beam"),
}
"""How each part is made."""
