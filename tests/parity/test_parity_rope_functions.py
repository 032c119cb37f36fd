"""Each RoPE scaling rule of transformers is supported, with the same frequencies from each form in
which files store it.

The rules come from the table of transformers, so that a new rule makes this test fail.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.glm4v.modeling_glm4v import Glm4vTextRotaryEmbedding
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir import ops

pytestmark = pytest.mark.parity

WIDTH, FEW = 16, 24
"""The width of a head, and the length of texts before the scaling."""
PAIRS = WIDTH // 2
DIVISORS = {
    "short_factor": [1.0 + n / 4 for n in range(PAIRS)],
    "long_factor": [2.0 + n for n in range(PAIRS)],
}
ORIGINAL = {"original_max_position_embeddings": FEW}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "linear": [{"factor": 3.0}],
    "dynamic": [{"factor": 3.0}],
    "yarn": [
        {"factor": 4.0, **ORIGINAL},
        {"factor": 4.0, **ORIGINAL, "mscale": 0.7, "mscale_all_dim": 0.4},
        {"factor": 4.0, **ORIGINAL, "attention_factor": 1.3, "truncate": False},
        {"factor": 4.0, **ORIGINAL, "beta_fast": 8.0, "beta_slow": 0.5},
    ],
    "longrope": [{"factor": 4.0, **ORIGINAL, **DIVISORS}],
    "llama3": [{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL}],
    "proportional": [
        {"partial_rotary_factor": 0.25},
        {"partial_rotary_factor": 0.6, "factor": 8.0},
        {"partial_rotary_factor": 1.0},
    ],
}
CASES = [(kind, more) for kind, each in SETTINGS.items() for more in each]
FORMS = ["new", "old", "of layers"]
SPEC = """specc 1
model m
config {{ rope: rope from rope_config({options}) = rope(theta=1.0) }}
dims b, n
graph g(x: float[b, n, {width}]) -> (y: float[b, n, {width}]) {{
  h = insert(x, axis=1)
  return squeeze(rotate(h, positions(x), rope, pairs=half), axis=1)
}}
"""


def test_every_rule_has_settings() -> None:
    assert SETTINGS.keys() == ROPE_INIT_FUNCTIONS.keys()


def ours(directory: Path, form: str, rope: dict[str, Any], longest: int) -> tuple[Any, float]:
    """Return the frequencies and the attention factor from a config.json."""
    layers = form == "of layers"
    options = 'theta=1.0, layers="full_attention"' if layers else "theta=1.0"
    path = directory / "m.specc"
    path.write_text(SPEC.format(options=options, width=WIDTH))
    told: dict[str, Any] = {"max_position_embeddings": FEW}
    if form == "old":
        told["rope_theta"] = rope["rope_theta"]
        told["rope_scaling"] = {k: v for k, v in rope.items() if k != "rope_theta"}
    else:
        told["rope_parameters"] = {"full_attention": rope} if layers else rope
    config = directory / "config.json"
    config.write_text(json.dumps(told))
    graph = elaborate_spec(open_spec(str(path), config=str(config), context_length=longest)).graph
    (made,) = (n.op for n, _ in graph.nodes if isinstance(n.op, ops.RopeAngles))
    return np.array(made.frequencies), made.factor


def theirs(form: str, rope: dict[str, Any], longest: int) -> tuple[Any, float]:
    """Return those of the published function."""
    sizes = {
        "head_dim": WIDTH,
        "hidden_size": 2 * WIDTH,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": FEW,
        "num_hidden_layers": 1,
    }
    layer = None
    if form == "of layers":
        layer = "full_attention"
        config = transformers.Gemma3TextConfig(
            **sizes, layer_types=[layer], rope_parameters={layer: rope}
        )
    else:
        config = transformers.LlamaConfig(**sizes, rope_parameters=rope)
    function = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
    made, factor = function(config, torch.device("cpu"), seq_len=longest or FEW, layer_type=layer)
    return made.double().numpy(), factor


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("kind", "more"), CASES, ids=str)
def test_the_published_function(kind: str, more: dict[str, Any], form: str, tmp_path: Path) -> None:
    """Within the original context length and, if the rule depends on the length, beyond it."""
    rope = {"rope_type": kind, "rope_theta": 500.0, **more}
    if form == "of layers" and "truncate" in more:
        pytest.skip("the published function looks for it beside the layers' tables")
    for longest in (0, 3 * FEW) if kind in ("dynamic", "longrope") else (0,):
        mine, factor = ours(tmp_path, form, rope, longest)
        published, scale = theirs(form, rope, longest)
        np.testing.assert_allclose(mine, published, rtol=2e-6, atol=0)
        assert factor == pytest.approx(scale, rel=1e-6)


THREE_AXES = SPEC.replace("positions(x)", "[positions(x), positions(x), positions(x)]").replace(
    "pairs=half", "pairs=half, sections={sections}, order={order}"
)


@pytest.mark.parametrize(
    ("rotary", "config", "order", "step"),
    [
        (Qwen2VLRotaryEmbedding, transformers.Qwen2VLTextConfig, "contiguous", 1),
        (Qwen3VLTextRotaryEmbedding, transformers.Qwen3VLTextConfig, "interleaved", 1),
        (Glm4vTextRotaryEmbedding, transformers.Glm4vTextConfig, "contiguous", 2),
    ],
)
def test_position_axes_of_the_published_classes(
    rotary: Any, config: Any, order: str, step: int, tmp_path: Path
) -> None:
    """Compare with the frequencies of the class if each frequency is the index of its axis."""
    sections = [4, 2, 2]
    module = rotary(
        config(
            rope_parameters={"rope_type": "default", "rope_theta": 7.0, "mrope_section": sections}
        )
    )
    axes = module.recomposition_frequencies(torch.arange(3.0)[:, None].repeat(1, PAIRS))
    path = tmp_path / "m.specc"
    options = {"options": "theta=1.0", "width": WIDTH, "sections": sections, "order": order}
    path.write_text(THREE_AXES.format(**options))
    graph = elaborate_spec(open_spec(str(path))).graph
    (made,) = (n.op for n, _ in graph.nodes if isinstance(n.op, ops.RopeAngles))
    assert made.axes == tuple(axes.int().tolist()[::step][:PAIRS])
