"""The call sequences of docs/architecture.md are executed; their functions are called in order."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import specc
from specc.weights.formats.safetensors import write_safetensors

DOC = Path(__file__).parents[2] / "docs" / "architecture.md"
SECTIONS = re.split(
    r"^### ",
    DOC.read_text(encoding="utf-8").split("## Four call sequences")[1].split("\n## ")[0],
    flags=re.MULTILINE,
)[1:]
CALL_SEQUENCES = {
    title: body for title, _, body in (section.partition("\n") for section in SECTIONS)
}
NAME = re.compile(r"`(specc(?:_\w+)?(?:\.\w+){2,})`")
SPEC = """specc 1
model tiny "A causal language model"
config {
  vocab: int = 32
  d: int = 16
}
dims batch >= 1, seq >= 1
mask causal = j <= i

graph lm(ids: int[batch, seq], keep: keep[batch, seq] = ids >= 0) -> (logits: float[batch, seq, vocab]) {
  x = embedding(ids, size=vocab, dim=d) @ table
  return linear(layer(x, keep), out=vocab) @ head
}

block layer(x: float[batch, seq, d], keep: keep[batch, seq]) -> float[batch, seq, d] {
  return x + attend(linear(x, out=d) @ q, linear(x, out=d) @ k, linear(x, out=d) @ v, mask=causal & visible(keep))
}

generate text of ids from logits {}
"""


def record_calls(act: Callable[[], object]) -> list[str]:
    """Return the functions of specc that `act` calls, by qualified name, in the order of their first call."""
    called: dict[str, None] = {}

    def record(frame, event, _):
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.partition(".")[0].startswith("specc"):
            called.setdefault(f"{module}.{frame.f_code.co_qualname}")

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        act()
    finally:
        sys.setprofile(before)
    return list(called)


def find_missing_call(sequence: str, called: list[str]) -> str | None:
    """Return the first function of `sequence` that is not in `called` after the functions before it,
    or None.
    """
    last = -1
    for name in NAME.findall(sequence):
        if name not in called or called.index(name) < last:
            return name
        last = called.index(name)
    return None


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Callable[[], object]]:
    root = tmp_path_factory.mktemp("call-sequences")
    spec = root / "tiny.specc"
    spec.write_text(SPEC, encoding="utf-8")
    other = root / "other.specc"  # parsed specs are cached by their text
    other.write_text(SPEC.replace("tiny", "other"), encoding="utf-8")
    rng = np.random.default_rng(0)
    shapes = {"table.weight": (32, 16), "head.weight": (32, 16), "head.bias": (32,)}
    shapes |= {f"{n}.weight": (16, 16) for n in "qkv"} | {f"{n}.bias": (16,) for n in "qkv"}
    tensors = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    write_safetensors(root / "tiny.safetensors", tensors)
    specc.compile(spec, root / "tiny.pkg", init=0, graphs="step")

    def generate() -> None:
        specc.load(root / "tiny.pkg").generate(
            np.array([[1, 2, 3]]), max_tokens=3, strategy="sample", seed=1
        ).results()

    return {
        "Spec to ONNX": lambda: specc.compile(other, root / "other.onnx", init=0),
        "Mask to `Attention`": lambda: specc.compile(spec, root / "mask.onnx", init=0),
        "Tensor to initializer": lambda: specc.compile(
            spec, root / "w.onnx", weights=root / "tiny.safetensors"
        ),
        "Prompt to text": generate,
    }


@pytest.mark.parametrize("title", CALL_SEQUENCES)
def test_functions_are_called_in_order(title: str, runs) -> None:
    sequence = CALL_SEQUENCES[title]
    assert len(NAME.findall(sequence)) >= 5
    called = record_calls(runs[title])
    assert find_missing_call(sequence, called) is None


def test_missing_and_reordered_calls_are_found() -> None:
    sequence = "`specc.a.first` and `specc.a.second`"
    assert find_missing_call(sequence, ["specc.a.first", "specc.a.second"]) is None
    assert find_missing_call(sequence, ["specc.a.first"]) == "specc.a.second"
    assert find_missing_call(sequence, ["specc.a.second", "specc.a.first"]) == "specc.a.second"
