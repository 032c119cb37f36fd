"""Models with several codebooks per step: packages and full forward passes generate the same
tokens, from Python, the command line and data sets; unsupported features are rejected by code.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.small_configs import SMALL_CONFIGS

import specc
from specc.api import Model
from specc.cli.main import main
from specc.diagnostics.diagnostic import SpeccError

NAME = "musicgen"
SETS = SMALL_CONFIGS[NAME]
SOURCES = [[5, 9, 3], [7, 2, 4]]
SETTINGS: dict[str, Any] = {
    "max_tokens": 9,
    "strategy": "sample",
    "temperature": 0.9,
    "repetition_penalty": 1.2,
    "seed": 4,
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("package") / "package"
    specc.compile(NAME, directory, init=3, set=SETS, graphs=["score", "encode", "step"])
    return directory


@pytest.fixture(scope="module")
def model(package: Path) -> Model:
    return specc.load(package)


def test_package_and_full_forward_generate_the_same_codebooks(model: Model, tmp_path: Path) -> None:
    specc.compile(NAME, tmp_path / "m.onnx", init=3, set=SETS)
    full_forward = specc.load(tmp_path / "m.onnx")
    together = model.generate(input_ids=SOURCES, **SETTINGS).results()
    assert full_forward.generate(input_ids=SOURCES, **SETTINGS).results() == together
    assert [len(codebook) for codebook in together[0][0].codebooks] == [7, 7, 7]
    assert list(model.generate_each(SOURCES, **SETTINGS)) == [row[0] for row in together]


def test_stream_yields_delayed_tokens(model: Model) -> None:
    stream = model.generate(input_ids=SOURCES, **SETTINGS)
    steps = np.array([step.tokens for step in stream])
    for row, [result] in enumerate(stream.results()):
        assert result.text is None
        for k, codebook in enumerate(result.codebooks):
            assert steps[k : k + 7, row, k].tolist() == list(codebook)
    with pytest.raises(SpeccError, match="E0945"):
        next(stream.pieces())


def test_prompts_of_different_lengths(model: Model) -> None:
    start, frames = [[16] * 3], [[1, 2, 3], [4, 5, 6]]
    prompts = [start + frames, start]
    together = model.generate(SOURCES, prompts, max_tokens=8).results()
    for row, prompt in enumerate(prompts):
        assert model.generate([SOURCES[row]], [prompt], max_tokens=8).results()[0] == together[row]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"strategy": "beam"}, "E0733"),
        ({"stop_strings": "a"}, "E0733"),
        ({"max_tokens": 2}, "E0733"),
        ({"delay_pattern": [0, 1]}, "E0732"),
    ],
)
def test_unsupported_settings(model: Model, settings: dict[str, Any], code: str) -> None:
    with pytest.raises(SpeccError, match=code):
        model.generate(input_ids=SOURCES, **settings)


@pytest.mark.parametrize(
    ("options", "code"),
    [({"graphs": "generate"}, "E0703"), ({"graphs": "step", "io_names": "hf"}, "E0752")],
)
def test_unsupported_graphs(options: dict[str, Any], code: str, tmp_path: Path) -> None:
    with pytest.raises(SpeccError, match=code):
        specc.compile("musicgen_decoder", tmp_path / "m", init=0, **options)


def test_spec_with_a_wrong_number_of_delays() -> None:
    source = (
        "specc 1\nmodel m\ndims batch, n\n"
        "graph g(ids: int[batch, n, 2]) -> (logits: float[batch, n, 2, 4]) {\n"
        "  x = sum(embedding(ids, size=4, dim=4) @ e, axis=2)\n"
        "  return stack([x, x * 2.0], axis=2)\n}\n"
        "generate codes of ids from logits { delay_pattern = [0, 1, 2] }\n"
    )
    with pytest.raises(SpeccError, match="E0732") as failed:
        specc.check(source)
    assert failed.value.diagnostics[0].primary


def test_run_prints_and_saves_codebooks(
    package: Path, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = [
        [list(codebook) for codebook in row[0].codebooks]
        for row in model.generate(input_ids=SOURCES, max_tokens=9).results()
    ]
    command = ["run", str(package), f"input_ids={json.dumps(SOURCES)}", "--max-tokens", "9"]
    plot = str(tmp_path / "plot.html")
    assert main([*command, "-o", str(tmp_path / "codes.npz"), "--attention", plot]) == 0
    lines = [" ".join(map(str, codebook)) for row in expected for codebook in row]
    assert capsys.readouterr().out.splitlines()[: len(lines)] == lines
    assert np.load(tmp_path / "codes.npz")["codes"].tolist() == expected
    assert main([*command, "--format", "json"]) == 0
    texts = json.loads(capsys.readouterr().out)["texts"]
    assert [row[0]["tokens"] for row in texts] == expected


def test_map_writes_a_list_per_codebook(package: Path, model: Model, tmp_path: Path) -> None:
    data, out = tmp_path / "rows.jsonl", tmp_path / "out"
    data.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in SOURCES))
    model.map(data, out=out, **SETTINGS, log_probs=True)
    rows = [json.loads(line) for line in (out / "part-000000.jsonl").read_text().splitlines()]
    results = model.generate(input_ids=SOURCES, **SETTINGS, log_probs=True).results()
    for row, [result] in zip(rows, results, strict=True):
        assert row["tokens"] == [list(codebook) for codebook in result.codebooks]
        assert np.shape(row["log_probs"]) == (3, 7)
