"""Every config value of every built-in spec has an effect: another value changes the model or is
rejected.

The spec lists its fields, including those of records. An effect is a change of the graph, the
defaults of inputs, preprocessing, or generation settings.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from support.small_configs import SMALL_CONFIGS

from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_loader import LoadedSpec, open_spec
from specc.driver.weights_section_and_load_transforms import read_weight_rules
from specc.frontend.elaboration_context import LexicalScope
from specc.frontend.generate_stream_and_reading_sections import list_graphs
from specc.frontend.spec_to_graph import create_context, elaborate_model, evaluate_and_check_config
from specc.ir.ir_printer_and_lexer import format_ir
from specc.syntax import ast

OTHERS = {
    "float": ["0.625", "1.5"], "text": ['"else"', '"default"'], "score": ["general", "dot"], "normalizer": ["softmax", "topk(2)"], "norm": ["rms_norm(eps=1e-3)"],
    "mask": ["chunked(3)"], "positions": ["learned(size=64)", "none"], "activation": ["tanh", "silu"],
    "rope": ["rope(theta=77.0)"], "pair": ["[8, 16]", "[2, 1]"],
}  # fmt: skip
FREE = {
    "labels": "only names what `show` says",
    "text.labels": "heads that the spec of images and text does not have",
    "vision.projection_dim": "heads that the spec of images and text does not have",
}
"""Fields without numeric effect, by reason."""
OF_OTHER_SPECS = {
    ("mbart", "cross_attention_dim"): "vision_encoder_decoder reads it",
    ("vision_encoder_decoder", "encoder.model_type"): "`vit_msn` selects a default of `eps`",
    **{
        ("vision_encoder_decoder", f"encoder.{field}"): "a head of ViT, which has no decoder"
        for field in (
            "classes", "classifier_pooling", "encoder_stride", "pooler_act", "pooler_output_size",
        )
    },
    ("encodec", "dilation_growth"): "a second residual layer reads it",
    **dict.fromkeys(
        (
            ("timm_convnext", "architecture"), ("timm_convnext", "first_width"), ("timm_resnet", "architecture"),
            ("timm_vit", "architecture"), ("timm_vit", "size"),
        ),
        "it determines sizes, which the small config sets",
    ),
    ("t5", "local_radius"): "LongT5 reads it",
    ("t5", "global_block"): "LongT5 reads it",
    ("musicgen", "text.local_radius"): "LongT5 reads it",
    ("musicgen", "text.global_block"): "LongT5 reads it",
    **{
        ("musicgen", f"text.{field}"): "T5's decoder, which MusicGen does not have"
        for field in ("decoder_layers", "tied", "scale_decoder_outputs", "start", "eos")
    },
    **{
        ("musicgen", f"audio.{field}"): "the number of codebooks of EnCodec alone"
        for field in ("sampling_rate", "hop", "bits", "quantizers")
    },
    ("vision_encoder_decoder", "decoder.pad"): "sinusoidal positions of TrOCR read it",
    ("vision_encoder_decoder", "decoder.start"): "generation of TrOCR; the model has its own `start`",
}  # fmt: skip
"""Fields that have an effect only in a spec that uses this one, or only in a used spec alone."""


def iterate_fields(spec: LoadedSpec) -> Iterator[tuple[str, ast.TypeExpr]]:
    """Yield every field by its dotted path, including those of used specs."""
    for path, entry in spec.program.map_fields_by_path().items():
        if entry.type.name != "record":
            yield path, entry.type


def list_other_values(type: ast.TypeExpr, now: Any) -> list[str]:
    """Return other values as text of the language."""
    match type.name:
        case "bool":
            return ["true", "false"]
        case "choice":
            return [w if w.isidentifier() else f'"{w}"' for w in type.names]
        case "int":
            return [str(2 * now if isinstance(now, int) and now else 3), "5", "4"]
        case "list":
            return ["[3]", "[2, 3, 5]", '["a", "b"]']
    return OTHERS[type.name]


def describe_spec(name: str, sets: dict[str, Any]) -> str:
    """Return the whole meaning of a spec with these values, or the codes of its errors."""
    given = [f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in sets.items()]
    try:
        spec = open_spec(name, config_settings=given)
        context = create_context(spec.program)
        config = evaluate_and_check_config(context, spec.program, spec.config_reader)
    except SpeccError as failed:
        return ", ".join(d.code for d in failed.diagnostics)
    env = LexicalScope(context=context, module=spec.program.module, config=config)
    rules = repr(read_weight_rules(spec.program, env))
    return rules + "".join(describe_graph(spec, graph.name) for graph in list_graphs(spec.program))


def describe_graph(spec: LoadedSpec, graph: str) -> str:
    """Return the meaning of one graph of a spec, or the codes of its errors."""
    try:
        model = elaborate_model(spec.program, spec.config_reader, graph)
    except SpeccError as failed:
        return ", ".join(d.code for d in failed.diagnostics)
    whole = [format_ir(g) for g in (model.graph, model.defaults) if g]
    return repr((whole, model.generation, model.input_configs, model.output_formats))


QUICK = {"kernel_regression", "kv_lookup", "luong_location", "seq2seq", "vit_mae"}


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in sorted(SMALL_CONFIGS)],
)
def test_every_config_value_has_an_effect_or_is_refused(name: str) -> None:
    usual = describe_spec(name, SMALL_CONFIGS[name])
    idle = []
    for path, type in iterate_fields(open_spec(name)):
        values = list_other_values(type, SMALL_CONFIGS[name].get(path))
        if (
            path not in FREE
            and (name, path) not in OF_OTHER_SPECS
            and all(describe_spec(name, {**SMALL_CONFIGS[name], path: v}) == usual for v in values)
        ):
            idle.append(path)
    assert not idle
