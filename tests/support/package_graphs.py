"""The graphs of a package as ONNX models: encoder, step, step with KV buffers, full forward pass,
decoding loop.
"""

from collections.abc import Callable, Mapping

from specc.decode.generation_settings import merge_caller_settings
from specc.ir.model_definition import (
    DerivedGraphs,
    KVBufferGraph,
    ModelDefinition,
    StandaloneGenerator,
    count_codebooks,
)
from specc.transforms import pass_pipeline
from specc_onnx import (
    OnnxBuildResult,
    build_generation_model,
    build_model,
    find_in_place_kv_caches,
    get_target,
)
from support.generation_models import make_decoding


def derive_graphs(model: ModelDefinition) -> DerivedGraphs:
    """Derive encoder and step of a model, as a specc package contains them."""
    assert model.generation
    return pass_pipeline.run_decode_step_passes(
        pass_pipeline.CompilerPassState(
            graph=pass_pipeline.simplify_graph(model.graph),
            defaults=model.defaults,
            generation=model.generation,
        )
    )


def build_package_graph(
    model: ModelDefinition, part: str, where: str, opset: int
) -> OnnxBuildResult | None:
    """Return one graph as an ONNX model; None if the model does not have it."""
    return PARTS[part](model, where, opset)


def _score(model: ModelDefinition, where: str, opset: int) -> OnnxBuildResult:
    return build_model(pass_pipeline.simplify_graph(model.graph), get_target(where), opset)


def _encode(model: ModelDefinition, where: str, opset: int) -> OnnxBuildResult | None:
    encode = derive_graphs(model).encode
    return build_model(encode, get_target(where), opset) if encode else None


def _step(model: ModelDefinition, where: str, opset: int) -> OnnxBuildResult:
    return build_model(derive_graphs(model).step, get_target(where), opset)


def _buffers(model: ModelDefinition, where: str, opset: int) -> OnnxBuildResult | None:
    derived_graphs = derive_graphs(model)
    caches = find_in_place_kv_caches(
        derived_graphs.step, derived_graphs.states, get_target(where), opset
    )
    if not caches:
        return None
    return build_model(KVBufferGraph(derived_graphs.step, caches), get_target(where), opset)


def _decoding(strategy: str) -> Callable[[ModelDefinition, str, int], OnnxBuildResult | None]:
    def made(model: ModelDefinition, where: str, opset: int) -> OnnxBuildResult | None:
        generation = model.generation
        assert generation
        if count_codebooks(model.graph.inputs[generation.sequence_input].type):
            return None
        said: Mapping[str, object] = (
            {"num_beams": 3, "num_return_sequences": 2} if strategy == "beam" else {}
        )
        chosen = merge_caller_settings(
            generation.settings, strategy=strategy, repetition_penalty=1.3, **said
        )
        decoding = make_decoding(chosen, generation.logits_output, True)
        graph = pass_pipeline.simplify_graph(model.graph)
        whole = StandaloneGenerator(graph, derive_graphs(model), decoding, model.defaults)
        return build_generation_model(whole, get_target(where), opset)

    return made


PARTS: Mapping[str, Callable[[ModelDefinition, str, int], OnnxBuildResult | None]] = {
    "score": _score,
    "encode": _encode,
    "step": _step,
    "buffers": _buffers,
    "greedy": _decoding("greedy"),
    "sample": _decoding("sample"),
    "beam": _decoding("beam"),
}
"""Builders of the graphs by name."""
