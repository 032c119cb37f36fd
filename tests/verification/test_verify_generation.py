"""`specc verify` of a model with a decoding loop compares its tokens with decoding by float64
forward passes."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.onnx_sessions import save_with_hash
from support.parameter_sweeps import sample_sweep
from support.small_configs import SMALL_CONFIGS
from support.verification_lines import list_opened_lines

import specc
from specc.cli import main as cli
from specc.diagnostics.diagnostic import SpeccError
from specc.library.spec_file_lookup import find_builtin_specs
from specc.runtime.inference_model import open_compiled_model
from specc.runtime.single_model_file import LoadedModel
from specc.verification.model_verification import verify_graph

STRATEGIES = ("greedy", "sample", "beam")


def compile_generator(spec: str, strategy: str, directory: Path) -> Path:
    path = directory / "m.onnx"
    settings = {"strategy": strategy}
    specc.compile(
        spec,
        path,
        init=0,
        set=SMALL_CONFIGS[spec],
        graphs="generate",
        generation_config=settings,
        weights_as="inline",
    )
    return path


@pytest.mark.parametrize(
    ("spec", "strategy"),
    sample_sweep(list(product(("llama", "encoder_decoder"), STRATEGIES)), stride=2),
)
def test_tokens_equal_the_reference(
    spec: str, strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = compile_generator(spec, strategy, tmp_path)
    assert cli.main(["verify", str(path), "--strict"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) >= 3
    assert all(f"tokens by {strategy} decoding" in line for line in said)


@pytest.mark.parametrize("strategy", sample_sweep([*STRATEGIES]))
def test_wrong_weights_and_wrong_choices_are_found(strategy: str, tmp_path: Path) -> None:
    path = compile_generator("llama", strategy, tmp_path)
    right: LoadedModel = specc.load(path).scoring_model
    for change in (_scale_weights, _negate_logits):
        model = onnx.load(path)
        change(model, right)
        save_with_hash(model, tmp_path / "wrong.onnx")
        wrong = specc.load(tmp_path / "wrong.onnx").scoring_model
        with pytest.raises(SpeccError, match="E0930"):
            list(verify_graph(_share_weights(wrong, right)))


def _share_weights(wrong: LoadedModel, right: LoadedModel) -> LoadedModel:
    """Let the reference read the correct weights."""
    wrong.file.__dict__["read_weights"] = right.file.read_weights
    return wrong


def _scale_weights(model: onnx.ModelProto, right: LoadedModel) -> None:
    for tensor in model.graph.initializer:
        if tensor.name == right.manifest.initializers["model.norm.weight"]:
            value = numpy_helper.to_array(tensor) * np.float32(1.01)
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


def _negate_logits(model: onnx.ModelProto, right: LoadedModel) -> None:
    """Negate the logits inside the loop."""
    (loop,) = (n for n in model.graph.node if n.op_type == "Loop")
    body = next(a.g for a in loop.attribute if a.HasField("g"))
    head = right.manifest.initializers["lm_head.weight"]
    made = {name: n for n in (*model.graph.node, *body.node) for name in n.output}
    reads = {head} | {name for name, n in made.items() if head in n.input and n in model.graph.node}
    (product,) = (n for n in body.node if reads & {*n.input})
    name = product.output[0]
    product.output[0] = "right"
    body.node.insert(
        list(body.node).index(product) + 1, onnx.helper.make_node("Neg", ["right"], [name])
    )


def test_generate_graph_of_a_package(tmp_path: Path) -> None:
    specc.compile("gpt2", tmp_path / "p", init=0, set=SMALL_CONFIGS["gpt2"], graphs="all")
    found = [line for line in verify_lines(tmp_path / "p") if line.startswith("generate: ")]
    assert len(found) == 3
    assert all("agree" in line for line in found)


def verify_lines(path: Path) -> list[str]:

    return list(list_opened_lines(open_compiled_model(path), seed=0, rounds=3))


def list_beam_specs() -> list[str]:
    """Return the built-in specs that generate by beam search."""
    texts = {n: p.read_text(encoding="utf-8") for n, p in find_builtin_specs().items()}
    found = {n for n, text in texts.items() if "strategy = beam(" in text}
    return [n for n in sorted(SMALL_CONFIGS) if n in found or n.startswith("luong_")]


@pytest.mark.parametrize(("spec", "seed"), sample_sweep(list(product(list_beam_specs(), range(4)))))
def test_beam_search_equals_the_reference(spec: str, seed: int, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    settings: dict[str, Any] = {"set": SMALL_CONFIGS[spec], "graphs": "generate"}
    specc.compile(spec, path, init=seed, weights_as="inline", **settings)
    found = [*verify_graph(specc.load(path).scoring_model, seed=seed)]
    assert all(one.is_within_tolerance for one in found if one.is_compared)
    assert any(one.sizes["batch"] == 3 and "beam decoding" in one.note for one in found)


PADDED_SOURCE = """specc 1
model padded_source
dims batch, src, tgt
graph main(source: int[batch, src], source_keep: keep[batch, src] SIDE = source != 3,
           target: int[batch, tgt]) -> (logits: float[batch, tgt, 9]) {
  x = embedding(source, size=9, dim=6) @ words
  memory, _ = LAYER(x, hidden=5, direction=DIRECTION, keep=source_keep) @ encoder
  y = cumsum(embedding(target, size=9, dim=6) @ targets)
  y = y + (attention(y, linear(memory, out=6) @ map, heads=1, mask=visible(source_keep)) @ cross)
  return linear(3.0 * y, out=9) @ out
}
generate text of target from logits { start = 1  stop = 0  strategy = STRATEGY }
"""


@pytest.mark.parametrize(
    ("side", "layer", "direction", "strategy"),
    sample_sweep(
        list(
            product(
                ("right", "left", ""),
                ("lstm", "gru", "rnn"),
                ("forward", "both"),
                ("greedy", "beam(num_beams=3)"),
            )
        )
    ),
)
def test_random_sources_with_padding(
    side: str, layer: str, direction: str, strategy: str, tmp_path: Path
) -> None:
    text = PADDED_SOURCE.replace("SIDE", side).replace("LAYER", layer)
    text = text.replace("memory, _ =", "memory, _, _ =") if layer == "lstm" else text
    text = text.replace("gru(x,", "gru(x, reset=after,")
    text = text.replace("DIRECTION", direction).replace("STRATEGY", strategy)
    (tmp_path / "padded_source.specc").write_text(text, encoding="utf-8")
    path = tmp_path / "m.onnx"
    specc.compile(tmp_path / "padded_source.specc", path, init=0, graphs="generate")
    for seed in range(4):
        found = [*verify_graph(specc.load(path).scoring_model, seed=seed)]
        assert [one.is_within_tolerance for one in found if one.is_compared] == [True] * 3


CONVOLUTIONAL_ENCODER = """specc 1
model convolutional_encoder
dims batch, samples, tgt
graph main(sound: float[batch, samples], target: int[batch, tgt]) -> (logits: float[batch, tgt, 9]) {
  x = insert(sound, axis=2)
  x = conv(conv(x, out=4, kernel=7, stride=5) @ first, out=6, kernel=3, stride=2) @ second
  y = cumsum(embedding(target, size=9, dim=6) @ targets)
  y = y + (attention(y, x, heads=1, mask=all) @ cross)
  return linear(3.0 * y, out=9) @ out
}
generate text of target from logits { start = 1  stop = 0 }
"""


def test_steps_have_the_minimum_lengths_of_the_encoder(tmp_path: Path) -> None:
    """Two convolutions need 17 samples; the step depends on the number of samples only through the
    length of the encoder outputs.
    """
    spec = tmp_path / "convolutional_encoder.specc"
    spec.write_text(CONVOLUTIONAL_ENCODER, encoding="utf-8")
    specc.compile(spec, tmp_path / "p", init=0, graphs="all")
    found = [line for line in verify_lines(tmp_path / "p") if line.startswith("step: ")]
    assert "samples=17:" in found[0]
    assert all("agree" in line for line in found)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(s, marks=[] if s == "transformer_xl" else pytest.mark.slow)
        for s in sorted(SMALL_CONFIGS)
    ],
)
def test_every_package(spec: str, tmp_path: Path) -> None:
    """Every graph, including decode steps after other steps. Decode steps of Transformer-XL have
    states with positions of the encoder and of earlier steps.
    """
    specc.compile(spec, tmp_path / "p", init=0, set=SMALL_CONFIGS[spec], graphs="all")
    found = verify_lines(tmp_path / "p")
    assert all("agree" in line or "not covered" in line for line in found)
    assert sum("agree" in line for line in found) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("spec", sorted(SMALL_CONFIGS))
def test_every_generative_spec(spec: str, strategy: str, tmp_path: Path) -> None:
    try:
        path = compile_generator(spec, strategy, tmp_path)
    except SpeccError as failed:
        pytest.skip(failed.diagnostics[0].title)
    assert all(
        one.is_within_tolerance or one.uncovered_subgraphs
        for one in verify_graph(specc.load(path).scoring_model)
    )
