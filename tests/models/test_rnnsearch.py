"""`rnnsearch`: the contents of its loop, padding on both sides, and `dates`, a trained translator."""

import importlib.util
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from support.elaborated_specs import (
    Arrays,
    ElaboratedSpec,
    OrtModel,
    assert_arrays_close,
    elaborate_with_config,
    run_reference,
    sample_spec_weights,
)
from support.padded_batches import PaddingMask, TokenIds, make_samples

import specc
from specc.analysis.padding_check import check_padding
from specc.api import Model
from specc.cli.main import main
from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import open_spec
from specc.library.spec_file_lookup import find_builtin_specs
from specc.preprocessing.preprocessing_records import CharTokenizer
from specc.preprocessing.text_codec import decode_text as text_of
from specc.preprocessing.text_codec import encode_text_to_ids

ROOT = Path(__file__).parents[2]
SIZES = {
    "src_vocab": 17,
    "tgt_vocab": 19,
    "embed_dim": 6,
    "hidden": 8,
    "attention_dim": 5,
    "readout": 4,
}
PRODUCTS = ("MatMul", "Gemm", "FusedMatMul", "Einsum")
GIVEN = make_samples(
    {
        "source": TokenIds("src", 17),
        "source_keep": PaddingMask("src"),
        "target": TokenIds("tgt", 19),
    },
    {"src": (5, 1, 3), "tgt": (4, 4, 4)},
)


@pytest.fixture(scope="module")
def spec() -> ElaboratedSpec:
    return elaborate_with_config("rnnsearch", **SIZES)


@pytest.fixture(scope="module")
def weights(spec: ElaboratedSpec) -> Arrays:
    return sample_spec_weights(spec)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dates") / "dates.onnx"
    specc.compile("dates", made)
    return made


@pytest.fixture(scope="module")
def dates(path: Path) -> Model:
    return specc.load(path)


@pytest.fixture(scope="module")
def vocabulary(dates: Model) -> CharTokenizer:
    record = dates.manifest.preprocessing.get_input_config("source")
    assert isinstance(record, CharTokenizer)
    return record


@pytest.fixture(scope="module")
def calendar() -> ModuleType:
    """Return docs/demos/dates/data.py, the data script of the training script."""
    found = importlib.util.spec_from_file_location(
        "dates_data", ROOT / "docs" / "demos" / "dates" / "data.py"
    )
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_spec_passes_the_symbolic_check() -> None:
    assert check_spec(open_spec("rnnsearch")).trials


def test_padding_is_masked_out_only_with_a_mask(spec: ElaboratedSpec, tmp_path: Path) -> None:
    assert check_padding(spec.model.graph) == []
    text = find_builtin_specs()["rnnsearch"].read_text(encoding="utf-8")
    (tmp_path / "leak.specc").write_text(
        text.replace("mask=visible(source_keep)", "mask=all"), encoding="utf-8"
    )
    (warning,) = check_padding(
        elaborate_with_config(str(tmp_path / "leak.specc"), **SIZES).model.graph
    )
    assert (
        warning.title
        == "padded positions affect `logits`: `masked_softmax` reads them without a mask"
    )
    assert warning.primary
    assert "attend_by" in warning.primary.span.text, "the op inside the loop, not the loop"


def inside_the_loops(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Scan" and attribute.name == "body":
                yield from attribute.g.node


def test_the_loop_contains_only_state_dependent_operations(tmp_path: Path) -> None:
    """Per step: W s, v · tanh(…), the weighted sum of the memory, the contribution of [y, context]
    to the gates, and two products with the state: of reset and update gate together, and, after the
    reset gate, of the candidate.

    U h is computed once; readout and vocabulary projection run for all steps after the loop.
    """
    path = tmp_path / "model.onnx"
    specc.compile("rnnsearch", path, init=0, set=SIZES)
    model = onnx.load(path)
    inside = Counter(node.op_type for node in inside_the_loops(model.graph))
    assert sum(inside[op] for op in PRODUCTS) == 6
    outside = Counter(node.op_type for node in model.graph.node)
    assert sum(outside[op] for op in PRODUCTS) == 4, "first state, U h, readout, vocabulary"
    assert outside["Scan"] == 1
    assert outside["GRU"] >= 1, "the encoder is no loop of ours"


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_sample_in_a_padded_batch_equals_itself_alone(
    spec: ElaboratedSpec, weights: Arrays, side: str
) -> None:
    """PAD and BATCH, for sources padded on either side."""
    together = GIVEN.make_batch(side, extra=2)  # type: ignore[arg-type]
    rows = [GIVEN.get_sample(row) for row in range(3)]
    # extended to the right, never padded
    together["target"] = np.concatenate([row["target"] for row in rows])
    for found, within in (
        (run_reference(spec, weights, together), 1e-9),
        (OrtModel(spec, weights).run(together), 1e-5),
    ):
        for row, alone in enumerate(rows):
            wanted = run_reference(spec, weights, alone)
            kept = GIVEN.get_positions(row, "src", together["source"].shape[1], side)  # type: ignore[arg-type]
            assert_arrays_close(
                found["logits"][row], wanted["logits"][0], f"logits of {row}", within
            )
            assert_arrays_close(
                found["alignment"][row][:, kept],
                wanted["alignment"][0],
                f"alignment of {row}",
                within,
            )
            assert found["alignment"][row].sum() == pytest.approx(4)


def test_the_weights_are_small() -> None:
    assert (find_builtin_specs()["dates"].parent / "dates.safetensors").stat().st_size < 10**6


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("3 mai 1979", "1979-05-03"),
        ("May 3rd, 1979", "1979-05-03"),
        ("Donnerstag, 3. Mai 1979", "1979-05-03"),
        ("le 1er août 2031", "2031-08-01"),
        ("29 February 1904", "1904-02-29"),
        ("25/12/79", "1979-12-25"),
        ("3.5.08", "2008-05-03"),
    ],
)
def test_dates_are_translated(
    path: Path, written: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(path), written]) == 0
    assert capsys.readouterr().out == f"{meant}\n"


def test_the_alignment_of_days_and_months_is_reversed(
    path: Path, dates: Model, vocabulary: CharTokenizer, tmp_path: Path
) -> None:
    """The alignment of "3 mai 1979" and 1979-05-03 is reversed."""
    ((best,),) = dates.generate("3 mai 1979").results()
    source = encode_text_to_ids("3 mai 1979", vocabulary)[None]
    found = dates.run(source=source, target=np.array([[1, *best.tokens[:-1]]]))
    looked = np.asarray(found["alignment"])[0].argmax(-1)
    assert looked.shape == (11,)
    assert set(looked[:4]) <= set(range(6, 11)), "the year"
    assert set(looked[5:7]) <= {2, 3, 4}, "the month"
    assert looked[9] == 0, "the day"
    picture, arrays = tmp_path / "crossing.png", tmp_path / "crossing.npz"
    assert (
        main(["run", str(path), "3 mai 1979", "--attention", str(picture), "-o", str(arrays)]) == 0
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    saved = np.load(arrays)
    np.testing.assert_array_equal(saved["translation"], [best.tokens])
    assert saved["alignment"].shape == (1, 11, 11)


def test_a_batch_generates_as_each_text_alone(dates: Model) -> None:
    texts = ["3 mai 1979", "Wednesday, December 31st, 2031"]
    found = dates.generate(texts).results()
    assert [(row[0].text, row[0].complete) for row in found] == [
        ("1979-05-03", True),
        ("2031-12-31", True),
    ]
    short = dates.generate(texts, max_tokens=4).results()
    assert [(row[0].text, row[0].complete) for row in short] == [("1979", False), ("2031", False)]
    assert dates.generate(source=np.zeros((0, 5), np.int64)).results() == []


def test_a_package_generates_the_tokens_of_the_full_graph(dates: Model, tmp_path: Path) -> None:
    """The step graph with its state, greedy and with beam search, and streamed."""
    specc.compile("dates", tmp_path / "dates", graphs=["encode", "step"])
    package = specc.load(tmp_path / "dates")
    for texts in ("3 mai 1979", ["Dec 1, 1999", "2. Januar 2034"]):
        for settings in (
            {},
            {"num_beams": 3, "num_return_sequences": 2},
            {"strategy": "sample", "seed": 5, "temperature": 3.0},
        ):
            want, got = (m.generate(texts, **settings).results() for m in (dates, package))
            assert [[(r.tokens, r.text) for r in row] for row in got] == [
                [(r.tokens, r.text) for r in row] for row in want
            ]
    assert [p[0] for p in package.generate("3 mai 1979").pieces() if p[0]] == list("1979-05-03")


def test_a_given_target_is_scored(dates: Model, vocabulary: CharTokenizer) -> None:
    source = encode_text_to_ids("3 mai 1979", vocabulary)[None]
    target = np.concatenate([[1], encode_text_to_ids("1979-05-03", vocabulary)[:-1]])[None]
    logits = dates.run(source=source, target=target)["logits"]
    assert text_of(logits[0].argmax(-1), vocabulary) == "1979-05-03"


@pytest.mark.parity
def test_held_out_dates_are_translated(dates: Model, calendar: ModuleType) -> None:
    """A part of the evaluation of docs/demos/dates/train.py: exact match on dates that are not in
    the training data.
    """
    learned, held_out = calendar.split_days()
    assert not {d.date for d in learned} & {d.date for d in held_out}
    pairs = calendar.make_validation_pairs(200)
    answers = [row[0].text for row in dates.generate([written for written, _ in pairs]).results()]
    assert np.mean([a == meant for a, (_, meant) in zip(answers, pairs, strict=True)]) >= 0.98
