"""Every config value of every built-in spec has an effect: another value changes the model or is
rejected.

The spec lists its fields, including those of records. The fields of a used spec that is itself in
`SMALL_CONFIGS` are tested only with that spec, so a field of it that the using spec ignores is not
detected. An effect is a change of the graph, the defaults of inputs, preprocessing, or generation
settings.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.small_configs import SMALL_CONFIGS

from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_loader import LoadedSpec, open_spec
from specc.driver.weights_section_and_load_transforms import read_weight_rules
from specc.frontend.elaboration_context import LexicalScope
from specc.frontend.generate_stream_and_reading_sections import list_graph_blocks
from specc.frontend.spec_to_graph import create_context, elaborate_model, evaluate_and_check_config
from specc.ir.ir_printer_and_lexer import format_ir
from specc.library.spec_file_lookup import find_builtin_specs
from specc.syntax import ast

OTHERS = {
    "float": ["0.625", "1.5", "0.0"], "text": ['"else"', '"default"'], "score": ["general", "dot"], "normalizer": ["softmax", "topk(2)"], "norm": ["rms_norm(eps=1e-3)"],
    "mask": ["chunked(3)"], "positions": ["learned(size=64)", "none"], "activation": ["tanh", "silu"],
    "rope": ["rope(theta=77.0)"], "pair": ["[8, 16]", "[2, 1]"],
}  # fmt: skip
FREE = {"labels": "only names what `show` says"}
"""Fields without numeric effect, by reason."""
OF_OTHER_SPECS = {
    ("mbart", "cross_attention_dim"): "vision_encoder_decoder reads it",
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
}  # fmt: skip
"""Fields that have an effect only in a spec that uses this one."""


def iterate_fields(spec: LoadedSpec) -> Iterator[tuple[str, ast.TypeExpr]]:
    """Yield every field by its dotted path, except the fields of used specs in `SMALL_CONFIGS`."""
    used = {u.name for u in spec.program.used_specs if u.program.name in SMALL_CONFIGS}
    for path, entry in spec.program.map_fields_by_path().items():
        if entry.type.name != "record" and path.split(".")[0] not in used:
            yield path, entry.type


def list_other_values(type: ast.TypeExpr, now: Any, literals: list[str]) -> list[str]:
    """Return other values as text of the language. `literals` are strings in the spec's source."""
    match type.name:
        case "bool":
            return ["true", "false"]
        case "choice":
            return [w if w.isidentifier() else f'"{w}"' for w in type.names]
        case "int":
            return [str(2 * now if isinstance(now, int) and now else 3), "5", "4", "2", "1"]
        case "text":
            return [*OTHERS["text"], *literals]
        case "list":
            return ["[3]", "[2, 3, 5]", '["a", "b"]']
    return OTHERS[type.name]


def describe_spec(name: str, sets: dict[str, Any]) -> str:
    """Return the whole meaning of a spec with these values, or the codes of its errors."""
    given = [f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in sets.items()]
    try:
        spec = open_spec(name, config_settings=given)
        context = create_context(spec.program)
        config = evaluate_and_check_config(context, spec.program, spec.config_options)
    except SpeccError as failed:
        return ", ".join(d.code for d in failed.diagnostics)
    env = LexicalScope(context=context, module=spec.program.module, config=config)
    rules = repr(read_weight_rules(spec.program, env))
    return rules + "".join(
        describe_graph(spec, graph.name) for graph in list_graph_blocks(spec.program)
    )


def describe_graph(spec: LoadedSpec, graph: str) -> str:
    """Return the meaning of one graph of a spec, or the codes of its errors."""
    try:
        model = elaborate_model(spec.program, spec.config_options, graph)
    except SpeccError as failed:
        return ", ".join(d.code for d in failed.diagnostics)
    whole = [format_ir(g) for g in (model.graph, model.defaults) if g]
    return repr((whole, model.generation, model.input_configs, model.output_formats))


QUICK = {"kernel_regression", "kv_lookup", "luong_location", "seq2seq", "vit_mae"}


def list_idle_fields(name: str) -> list[str]:
    """Return the fields of a spec without an effect. A field that only a few models read, such as
    the number of experts, needs another value of another field, or its default, to have one.
    """
    small = SMALL_CONFIGS[name]
    literals = re.findall(r'== ("[^"]+")', find_builtin_specs()[name].read_text())
    values = {
        path: list_other_values(type, small.get(path), literals) + ["none"] * type.optional
        for path, type in iterate_fields(open_spec(name))
        if (name, path) not in OF_OTHER_SPECS and path not in FREE
    }
    configs = [small, *({**small, path: v} for path, others in values.items() for v in others)]
    configs += [{k: v for k, v in small.items() if k != path} for path in small]
    idle = list(values)
    for config in configs if idle else ():
        usual = describe_spec(name, config)
        idle = [
            path
            for path in idle
            if all(describe_spec(name, {**config, path: v}) == usual for v in values[path])
        ]
        if not idle:
            break
    return idle


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in sorted(SMALL_CONFIGS)],
)
def test_every_config_value_has_an_effect_or_is_refused(name: str) -> None:
    assert not list_idle_fields(name)
