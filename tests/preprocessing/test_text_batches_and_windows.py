"""Batches of texts: each text is encoded independently, and errors name the text."""

import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.ir.dim import Dim
from specc.ir.graph import GraphBuilder, Input
from specc.ir.types import Type
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.preprocessing_records import CharTokenizer
from specc.preprocessing.text_batches_and_windows import encode_input_texts, encode_text_inputs

RECORD = CharTokenizer(("a", "b"))


def test_each_text_becomes_ids() -> None:
    assert [ids.tolist() for ids in encode_input_texts(["ab", ""], RECORD, "ids")] == [[0, 1], []]


@pytest.mark.parametrize(
    ("texts", "code", "note"),
    [
        (["a", "b", "c"], "E0908", "text 3 of 3 in `ids`"),
        (["a", None], "E0906", "text 2 of 2 in `ids`"),
        (["a", 3], "E0906", "text 2 of 2 in `ids`"),
    ],
)
def test_errors_name_the_text(texts: list[object], code: str, note: str) -> None:
    made = GraphBuilder()
    n = Dim.symbol("n")
    made.add_input("ids", Input(Type("i64", (Dim.symbol("b"), n))))
    graph = made.build_graph("g", {})
    with pytest.raises(SpeccError, match=code) as failed:
        encode_text_inputs(graph, PreprocessingConfig((("ids", RECORD),)), {"ids": texts})
    assert failed.value.diagnostics[0].notes[-1] == note
