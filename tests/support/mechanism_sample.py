"""A sample of the built-in specs that uses every mechanism, for the default suite; the parity suite
runs all of them.
"""

from collections.abc import Collection, Sequence

import pytest
from _pytest.mark.structures import ParameterSet

from specc.driver.spec_loader import open_spec
from specc.frontend.builtins import BUILTINS
from specc.frontend.spec_modules import Program
from specc.ir import ops
from specc.ir.graph import Graph
from specc.library.spec_file_lookup import SpecLibrary
from specc.syntax import ast
from specc.syntax.ast import walk_tree
from support.elaborated_specs import elaborate_with_config
from support.small_configs import SMALL_CONFIGS

MECHANISM_SPECS = frozenset(
    [
        "beit",
        "bert",
        "bloom",
        "clap_audio",
        "clap_text",
        "conditional_detr",
        "dates",
        "deberta_v2",
        "decomposable",
        "deepseek_v2",
        "deformable_detr",
        "depth_anything",
        "detr",
        "digits",
        "dinov3_convnext",
        "dots1",
        "elman",
        "encodec",
        "ernie4_5",
        "esm",
        "falcon",
        "florence2_vision",
        "gemma3",
        "gemma3n_text",
        "glimpses",
        "gpt2",
        "graph_attention",
        "grounding_dino",
        "kernel_regression",
        "kv_lookup",
        "layoutlmv3",
        "led",
        "levit",
        "llama",
        "llama4_text",
        "llava_next",
        "luong_dot",
        "mask2former",
        "mixtral",
        "mobilenet_v2",
        "mobilevit",
        "moonshine",
        "mvp",
        "nemotron_h",
        "ntm_read",
        "numbers",
        "parakeet_ctc",
        "patchtst",
        "poolformer",
        "pvt_v2",
        "qwen2_vl",
        "qwen3_5_text",
        "qwen3_vl",
        "regnet",
        "resnet",
        "rnn_attention",
        "rt_detr",
        "sam",
        "show_attend_tell",
        "siglip2",
        "sparsemax_lm",
        "speecht5",
        "speecht5_hifigan",
        "stablelm",
        "streaming_ctc",
        "t5",
        "timesfm",
        "transformer",
        "videomae",
        "vit",
        "vit_mae",
        "vit_segmenter",
        "vivit",
        "wav2vec2",
        "wav2vec2_bert",
        "whisper",
        "xor",
    ]
)
"""Specs that together contain every IR op, built-in function, std name and section of any built-in
spec.
"""


def sample_mechanisms(names: Sequence[str], costly: Collection[str] = ()) -> list[ParameterSet]:
    """Return the specs of the sample unmarked, and the others marked `parity`. CI runs both.

    `costly` specs are marked `parity` too.
    """
    kept = MECHANISM_SPECS.difference(costly)
    return [pytest.param(n, marks=() if n in kept else pytest.mark.parity) for n in names]


def list_mechanisms(spec: str) -> set[str]:
    """Return the mechanisms of a spec, with those of the specs that it extends and uses."""
    found: set[str] = set()
    _collect_ops(elaborate_with_config(spec, **SMALL_CONFIGS[spec]).model.graph, found)
    _collect_names(open_spec(spec).program, {*BUILTINS, *SpecLibrary().list_std_names()}, found)
    return found


def _collect_ops(graph: Graph, found: set[str]) -> None:
    for node, _ in graph.nodes:
        found.add(f"op {type(node.op).__name__}")
        if isinstance(node.op, ops.Scan):
            _collect_ops(node.op.body, found)


def _collect_names(program: Program, shared_names: set[str], found: set[str]) -> None:
    for module in program.chain:
        found |= {f"section {type(item).__name__}" for item in module.file.items}
        names = {node.path for node in walk_tree(module.file) if isinstance(node, ast.Name)}
        found |= {f"name {name}" for name in names & shared_names}
    for part in program.used_specs:
        found.add(f"{len(part.programs) > 1} alternatives of a used spec")
        for used_program in part.programs:
            _collect_names(used_program, shared_names, found)
