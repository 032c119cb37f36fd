"""`dates` as a standalone generator with its trained weights, run by ONNX Runtime alone."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from support.derived_graphs import derive_encoder_and_step

from specc.diagnostics.diagnostic import Source
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.driver.weight_sources import WeightSources, load_parameters
from specc.ir.model_definition import DecodingConfig, StandaloneGenerator
from specc.library.spec_file_lookup import find_builtin_specs
from specc.preprocessing.vocabulary import parse_vocabulary
from specc.transforms.fuse_scan import fuse_scan
from specc.transforms.graph_rewrite import rewrite_graph
from specc.transforms.split_scan import split_scan
from specc_onnx import get_target, write_model

TOKENS = parse_vocabulary(
    Source(
        "dates.vocab",
        (find_builtin_specs()["dates"].parent / "dates.vocab").read_text(encoding="utf-8"),
    )
)
START, END = 1, 2
WRITTEN = (
    "3 mai 1979",
    "May 3rd, 1979",
    "Donnerstag, 3. Mai 1979",
    "le 1er août 2031",
    "29 February 1904",
)
MEANT = ["1979-05-03", "1979-05-03", "1979-05-03", "2031-08-01", "1904-02-29"]


def written(directory: Path, decoding: DecodingConfig, name: str = "dates") -> Path:
    """Write the file, with the graph optimized as in `compile`."""
    spec = open_spec("dates")
    model = elaborate_spec(spec)
    assert model.generation
    graph = rewrite_graph(model.graph, [fuse_scan, split_scan])
    derived_graphs = derive_encoder_and_step(
        graph, model.generation.sequence_input, {"logits": "newest"}
    )
    values = load_parameters(spec, graph, WeightSources())
    path = directory / f"{name}.onnx"
    write_model(
        StandaloneGenerator(graph, derived_graphs, decoding, model.defaults),
        path,
        values,
        target=get_target("ort-cpu"),
    )
    return path


def ids() -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return token ids to translate, padded on the right."""
    rows = [[*map(TOKENS.index, text), END] for text in WRITTEN]
    longest = max(map(len, rows))
    return np.array([row + [0] * (longest - len(row)) for row in rows])


def texts(tokens: np.ndarray[Any, Any]) -> list[str]:
    """Return the generated characters up to the stop token."""
    return [
        "".join(TOKENS[t] for t in (row[: row.index(END)] if END in row else row))
        for row in tokens.tolist()
    ]


def test_greedy_search_generates_iso_dates(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        DecodingConfig(logits_output="logits", start_token_ids=(START,), stop_token_ids=(END,)),
    )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [(i.name, i.type, len(i.shape)) for i in session.get_inputs()] == [
        ("source", "tensor(int64)", 2),
        ("max_tokens", "tensor(int64)", 0),
    ]
    tokens, log_probs = session.run(None, {"source": ids(), "max_tokens": np.array(32)})
    assert texts(tokens) == MEANT
    assert tokens.shape == (5, 11), (
        "ten characters and the end: the loop stops where all have stopped"
    )
    assert log_probs.shape == tokens.shape
    assert np.exp(log_probs.sum(axis=1)).min() > 0.5


def test_beam_search_generates_iso_dates(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        DecodingConfig(
            logits_output="logits",
            strategy="beam",
            start_token_ids=(START,),
            stop_token_ids=(END,),
            num_beams=4,
            num_return_sequences=2,
        ),
    )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    tokens, scores = session.run(
        ["tokens", "scores"], {"source": ids(), "max_tokens": np.array(32)}
    )
    assert texts(tokens[:, 0]) == MEANT
    assert (scores[:, 0] > scores[:, 1]).all()


def test_compilation_is_deterministic(tmp_path: Path) -> None:
    decoding = DecodingConfig(
        logits_output="logits", start_token_ids=(START,), stop_token_ids=(END,)
    )
    first, second = (written(tmp_path, decoding, name) for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("strategy", ["greedy", "beam"])
def test_external_weights_are_written_once(strategy: Any, tmp_path: Path) -> None:
    """The external data contains the initializers of the file; the loop body has no weights."""
    model = onnx.load(
        written(
            tmp_path,
            DecodingConfig(
                logits_output="logits",
                strategy=strategy,
                start_token_ids=(START,),
                stop_token_ids=(END,),
            ),
        )
    )
    names = [t.name for t in model.graph.initializer]
    assert len(names) == len(set(names))
    numbers = sum(int(np.prod(t.dims)) for t in model.graph.initializer)
    trained = elaborate_spec(open_spec("dates")).graph.parameters.values()
    assert numbers < 1.01 * sum(
        int(np.prod([d.number or 0 for d in v.type.shape])) for v in trained
    )
