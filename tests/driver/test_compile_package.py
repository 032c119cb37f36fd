"""Built-in specs as packages of two graphs over shared parameters: the results equal those of two
single models."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.two_graph_packages import bind_pair_weights, build_manifest_text
from support.verification_lines import list_package_lines

import specc
from specc.backend import PackageGraph, PackageMetadata
from specc.driver import preprocessing_section
from specc.driver.compile_options import PACKAGE_GRAPHS
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.driver.taps import add_intermediate_outputs
from specc.runtime.model_package import open_package
from specc.runtime.random_inputs import choose_dim_sizes, make_random_inputs
from specc_onnx import get_target, write_package

SMALL = {
    "gpt2": {"layers": 2, "d": 16, "heads": 2, "vocab": 40, "context": 16},
    "lstm_lm": {"width": 8, "vocab": 20},
}
TAPS = {"gpt2": "*.attn", "lstm_lm": "*"}


@pytest.mark.parametrize("name", SMALL)
def test_package_equals_two_models(name: str, tmp_path: Path) -> None:
    config = SMALL[name]
    spec = open_spec(name, config_settings=[f"{k}={v}" for k, v in config.items()])
    model = elaborate_spec(spec)
    graphs = {"score": model.graph, "inside": add_intermediate_outputs(model.graph, (TAPS[name],))}
    preprocessing = preprocessing_section.build_preprocessing_config(spec.program, model)
    parts = {
        role: PackageGraph(
            graph, f"{role}.onnx", build_manifest_text(model, graph, preprocessing, {}, {"seed": 5})
        )
        for role, graph in graphs.items()
    }
    values = bind_pair_weights(spec, list(graphs.values()), 5, "")
    written = write_package(
        parts,
        tmp_path / "both",
        values,
        target=get_target("ort-cpu"),
        metadata=PackageMetadata(name),
    )
    alone = tmp_path / "alone.onnx"
    specc.compile(name, alone, init=5, set=config, weights_as="copy")
    assert len(list((tmp_path / "both").glob("*.data"))) == 1
    assert written.weight_file is not None
    # a single graph and a package of two graphs store the parameters as the same bytes
    (other,) = tmp_path.glob("alone-*.data")
    assert (tmp_path / "both" / written.weight_file).read_bytes() == other.read_bytes()

    inputs = make_random_inputs(
        model.graph, choose_dim_sizes(model.graph, 1), np.random.default_rng(0)
    )
    package = open_package(tmp_path / "both", verify_contents=True)
    want = specc.load(alone).run(**inputs)
    for role in package.graph_names:
        got = package.load_graph(role).run(**inputs)
        for result, array in want.items():
            np.testing.assert_allclose(got[result], array, rtol=0, atol=1e-5 * np.abs(array).max())
    assert len(package.load_graph("inside").session.outputs) > len(want)
    assert len(list(list_package_lines(package, rounds=1))) == 2


MEASURED = """
specc 1
model m
dims batch, src >= 1, seq
graph g(ids: int[batch, seq], memory: float[batch, src, 4]) -> (logits: float[batch, seq, 7]) {{
  x = embedding(ids, size=7, dim=6) @ table
  {line}
  return 3.0 * linear(z, out=7) @ head
}}
generate text of ids from logits {{ max_tokens = 4 }}
"""


@pytest.mark.parametrize(
    "line",
    [
        "z = x / float(length(memory, axis=1))",
        "z = x * insert(insert(float(sum(positions(memory), axis=0)), axis=0), axis=1)",
        "z = attend_by(additive(4), x, linear(memory, out=6) @ k, linear(memory, out=6) @ v, "
        "mask=chunked(2), normalize=uniform) @ a",
        "own = linear(memory, out=6) @ own\n  two = attend_by(additive(4), own, linear(memory, "
        "out=6) @ k, own, mask=chunked(2), normalize=uniform) @ a\n  z = x + two[:, 0:1]",
    ],
)
def test_step_receives_lengths(line: str, tmp_path: Path) -> None:
    """The step reads only a length of `memory`, of its keys or of the token ids."""
    (tmp_path / "m.specc").write_text(MEASURED.format(line=line))
    specc.compile(tmp_path / "m.specc", tmp_path / "one.onnx", init=2, graphs="generate")
    specc.compile(tmp_path / "m.specc", tmp_path / "package", init=2, graphs="all")
    whole = specc.load(tmp_path / "package")
    for rows in (1, 4):
        memory = np.random.default_rng(rows).normal(size=(2, rows, 4))
        ids, wanted = np.array([[2, 3], [4, 5]]), np.zeros((2, 0), int)
        for _ in range(4):
            text = np.concatenate([ids, wanted], axis=1)
            newest = whole.run(ids=text, memory=memory)["logits"][:, -1]
            wanted = np.concatenate([wanted, newest.argmax(-1)[:, None]], axis=1)
        for model in (whole, specc.load(tmp_path / "one.onnx")):
            found = model.generate(ids=ids, memory=memory, max_tokens=4)
            assert [list(r[0].tokens) for r in found.results()] == wanted.tolist()


PARTIAL = {
    "distilbert": ({"layers": 1, "d": 8, "heads": 2, "hidden": 8, "vocab": 11, "context": 9}, ["score"]),
    "xor": ({}, ["score"]),
    "streaming_ctc": ({"layers": 1}, ["score", "step"]),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTIAL)
def test_graphs_all_exports_the_supported_graphs(name: str, tmp_path: Path) -> None:
    """The remark names the omitted graphs with the reason; naming an unsupported graph explicitly
    is an error."""
    config, wanted = PARTIAL[name]
    made = specc.compile(name, tmp_path / "p", init=1, set=config, graphs="all")
    written = [p.stem for p in sorted((tmp_path / "p").glob("*.onnx"))]
    assert written == sorted(wanted)
    (said,) = [remark for remark in made.remarks if "not exported: " in remark]
    if name == "distilbert":
        assert said.endswith("is not a generative graph, because it has no `generate` section")
    named = said.partition("not exported: ")[2].partition(";")[0].split(", ")
    assert sorted([*named, *wanted]) == sorted({*PACKAGE_GRAPHS} & {*named, *wanted})
    assert specc.load(tmp_path / "p").package
    with pytest.raises(specc.SpeccError):
        specc.compile(name, tmp_path / "q", init=1, set=config, graphs=["generate", "score"])
    assert not (tmp_path / "q").exists()


def test_unsupported_generation_setting_omits_one_graph(tmp_path: Path) -> None:
    """A generation_config.json with `typical_p`: the other graphs are exported and generate the
    same tokens."""
    directory = tmp_path / "ck"
    directory.mkdir()
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 9}
    (directory / "config.json").write_text(json.dumps(config))
    keys = {"do_sample": True, "typical_p": 0.6, "max_new_tokens": 4}
    (directory / "generation_config.json").write_text(json.dumps(keys))
    given = {"config": directory, "init": 1}
    made = specc.compile("gpt2", tmp_path / "p", graphs="all", **given)
    assert not (tmp_path / "p" / "generate.onnx").exists()
    (said,) = [remark for remark in made.remarks if "not exported: " in remark]
    assert said.startswith("not exported: generate; `typical_p`")
    specc.compile("gpt2", tmp_path / "q", graphs=["step"], **given)
    texts = [
        [
            list(r.tokens)
            for r in specc.load(tmp_path / name).generate(input_ids=[[1, 2]]).results()[0]
        ]
        for name in ("p", "q")
    ]
    assert texts[0] == texts[1]
    with pytest.raises(specc.SpeccError, match="E0733"):
        specc.compile("gpt2", tmp_path / "r", graphs=["generate"], **given)


def test_score_graph_is_opened_on_first_use(tmp_path: Path) -> None:
    config = {"layers": 1, "d": 8, "heads": 2, "vocab": 9}
    specc.compile("gpt2", tmp_path / "p", init=1, set=config, graphs=["score", "step"])
    model = specc.load(tmp_path / "p")
    assert repr(model).startswith("<specc model gpt2, ")
    assert len(model.generate(input_ids=[[1, 2]], max_tokens=3).results()[0][0].tokens) == 3
    assert "scoring_model" not in vars(model)
    assert model.run(input_ids=[[1, 2]])["logits"].shape == (1, 2, 9)
    assert "scoring_model" in vars(model)


POINTER = """specc 1
model pointer
dims batch, m, n

graph main(points: float[batch, m, 2], ids: int[batch, n]) -> (logits: float[batch, n, m]) {
  memory = linear(points, out=8) @ encode
  h = zeros(shape=[batch, 8])
  scan row in gather(memory, ids) along n carry h collect y {
    h = tanh((linear(row, out=8) @ input) + (linear(h, out=8, bias=false) @ state))
    y = h
  }
  return grid(additive(8), y, memory) @ point
}

generate tour of ids from logits { max_tokens = 5 }
"""


def test_pointer_network_omits_the_generate_graph(tmp_path: Path) -> None:
    """With a vocabulary of dynamic size, the step chooses the same tokens as the full forward pass,
    and the remark names the length."""
    (tmp_path / "m.specc").write_text(POINTER, encoding="utf-8")
    made = specc.compile(tmp_path / "m.specc", tmp_path / "p", init=1, graphs="all")
    written = [p.stem for p in sorted((tmp_path / "p").glob("*.onnx"))]
    assert written == ["encode", "score", "step"]
    (said,) = [remark for remark in made.remarks if "not exported: " in remark]
    assert said.startswith("not exported: generate; `logits` selects one of m input positions")
    specc.compile(tmp_path / "m.specc", tmp_path / "full.onnx", init=1)
    points = np.random.default_rng(0).standard_normal((2, 6, 2)).astype(np.float32)
    given = {"points": points, "ids": np.array([[1], [3]])}
    tokens = [
        [list(row[0].tokens) for row in specc.load(tmp_path / name).generate(**given).results()]
        for name in ("p", "full.onnx")
    ]
    assert tokens[0] == tokens[1]
    assert [len(row) for row in tokens[0]] == [5, 5]
    with pytest.raises(specc.SpeccError) as failed:
        specc.compile(tmp_path / "m.specc", tmp_path / "g.onnx", init=1, graphs="generate")
    assert [d.code for d in failed.value.diagnostics] == ["E0703"]
    assert not (tmp_path / "g.onnx").exists()
