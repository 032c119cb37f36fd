"""`Model.attention()` returns the weights of every attention of every built-in spec, including
loops and any score function.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.small_configs import SMALL_CONFIGS

import specc
from specc.cli.main import main
from specc.ir import ops
from specc.ir.graph import Graph
from specc.runtime.attention_weights import (
    ITERATION_SEPARATOR,
    compute_attention_weights,
    find_attention_nodes,
)
from specc.runtime.random_inputs import choose_dim_sizes, make_random_inputs

TRAINED = {"dates", "digits", "numbers", "xor"}
NONE = {
    "autoencoder", "bilstm_tagger", "bit", "conv_lm", "convnext", "dinov3_convnext", "efficientnet", "elman",
    "encodec", "feedforward", "fnet", "focalnet", "glimpses", "gru_lm", "jordan", "linear_attention_lm",
    "lstm_lm", "mamba", "mamba2", "mobilenet_v1", "mobilenet_v2", "patchtsmixer", "poolformer",
    "recurrent_gemma", "regnet", "resnet", "rnn_encdec", "rwkv", "seq2seq", "timm_convnext", "timm_resnet",
    "xor",
}  # fmt: skip
"""Specs without an attention that has weights."""


def count_attentions(graph: Graph) -> int:
    """Return the number of attentions in a graph and in its loop bodies, once per name."""
    found = 0
    for node, _ in graph.nodes:
        if isinstance(node.op, ops.Scan):
            found += count_attentions(node.op.body)
        elif isinstance(node.op, ops.Attend | ops.WeightedSum):
            found += (
                max(1, len(graph.node_origins[node].scopes)) if node in graph.node_origins else 1
            )
    return found


FEW = [
    "rnnsearch",
    "luong_local_p",
    "graph_attention",
    "decomposable",
    "ntm_read",
    "show_attend_tell",
    "t5",
    "kv_lookup",
    "universal_transformer",
]
"""One spec per kind of attention; `parity` runs all."""


@pytest.mark.parametrize(
    "spec", [pytest.param(s, marks=[] if s in FEW else pytest.mark.slow) for s in SMALL_CONFIGS]
)
def test_every_attention_is_returned(spec: str, tmp_path: Path) -> None:
    specc.compile(
        spec, tmp_path / "m.onnx", set=SMALL_CONFIGS[spec], init=None if spec in TRAINED else 0
    )
    model = specc.load(tmp_path / "m.onnx")
    graph = model.manifest.graph
    assert bool(count_attentions(graph)) == (spec not in NONE)
    if spec in NONE:
        return
    given = make_random_inputs(graph, choose_dim_sizes(graph, 1), np.random.default_rng(0))
    results, weights = model.attention(**given)
    scopes = list(dict.fromkeys(scope.partition(ITERATION_SEPARATOR)[0] for scope in weights))
    assert scopes == list(find_attention_nodes(graph))
    assert len(scopes) == count_attentions(graph)
    usual = model.run(**given)
    assert all(np.array_equal(results[n], usual[n], equal_nan=True) for n in usual)
    wanted = compute_attention_weights(
        graph, model.selected_model.prepare_inputs(given), {}, model.weights
    )
    for scope, found in weights.items():
        assert found.ndim >= 4
        assert np.allclose(found, wanted[scope], atol=2e-5), scope
        value = find_attention_nodes(graph)[scope.partition(ITERATION_SEPARATOR)[0]].value
        assert value.node is not None
        if isinstance(value.node.op, ops.Attend | ops.MaskedSoftmax | ops.Softmax):
            total = found.sum(-1)
            sinks = (
                isinstance(value.node.op, ops.Attend)
                and len(value.node.args) > 5
                and value.node.args[5]
            )
            near = np.isclose(total, 1, atol=1e-5) | (total == 0)
            assert near.all() or sinks or spec.startswith("luong_local"), scope
    if "alignment" in usual and len(weights) == 1:
        (only,) = weights.values()
        assert np.allclose(only[:, 0], usual["alignment"], atol=2e-5)


def test_additive_cross_attention_agrees_with_its_formula(tmp_path: Path) -> None:
    """Taps return the operands of the formula; NumPy computes v · tanh(W q + U k) and its softmax
    again.
    """
    (tmp_path / "c.specc").write_text(
        "specc 1\nmodel c\n\ndims batch, n, m\n\n"
        "graph g(q: float[batch, n, 4], k: float[batch, m, 4], keep: keep[batch, m])\n"
        "    -> (y: float[batch, n, 4]) {\n"
        "  y, _ = attend_by(additive(3), q, k, k, mask=visible(keep)) @ look\n  return y\n}\n"
    )
    specc.compile(tmp_path / "c.specc", tmp_path / "c.onnx", init=3)
    model = specc.load(tmp_path / "c.onnx")
    rng = np.random.default_rng(0)
    q, k = (
        rng.normal(size=(2, 3, 4)).astype(np.float32),
        rng.normal(size=(2, 5, 4)).astype(np.float32),
    )
    keep = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], bool)
    results, weights = model.attention(q=q, k=k, keep=keep)
    (found,) = weights.values()
    assert list(weights) == ["look"]
    known: dict[str, Any] = {
        n.rpartition("look.")[2]: a.astype(np.float64) for n, a in model.weights().items()
    }
    by_q, by_k = (known.get("W.weight", known.get("W")), known.get("U.weight", known.get("U")))
    v = known.get("v.weight", known.get("v")).reshape(-1)
    bias = known.get("U.bias", known.get("W.bias", 0.0))
    scores = np.tanh((q @ by_q.T)[:, :, None] + (k @ by_k.T)[:, None] + bias) @ v
    power = np.exp(scores - scores.max(-1, keepdims=True)) * keep[:, None]
    wanted = power / power.sum(-1, keepdims=True)
    assert np.allclose(found[:, 0], wanted, atol=1e-5), sorted(known)
    assert np.allclose(results["y"], wanted @ k, atol=1e-5)


def test_the_selection_returns_the_selected_attentions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, picture = tmp_path / "m.onnx", tmp_path / "a.png"
    specc.compile("encoder_decoder", model, set=SMALL_CONFIGS["encoder_decoder"], init=0)
    words = ["run", str(model), "[[1, 2, 3]]", "[[1, 2]]", "--attention", str(picture)]
    scopes = list(specc.load(model).attention(source=[[1, 2, 3]], target=[[1, 2]])[1])
    assert len(scopes) == 3
    drawn = {}
    for scope in ["", *scopes]:
        chosen = ["--scope", scope] if scope else []
        assert main([*words, *chosen]) == 0
        said = capsys.readouterr().err
        assert f"plotted: `{scope or scopes[-1]}`" in said
        assert all(other in said for other in scopes)
        drawn[scope] = picture.read_bytes()
    assert drawn[""] == drawn[scopes[-1]]
    assert len(set(drawn.values())) == 3
    assert main([*words, "--scope", "nothing.*"]) == 1
    assert "error[E0931]" in capsys.readouterr().err
    assert main([*words[:-2], "--scope", "nothing.*"]) == 1
    assert "error[E0753]" in capsys.readouterr().err
