"""`glove_classifier` agrees with attention pooling in NumPy, over vectors from GloVe's text format."""

import json
from pathlib import Path

import numpy as np
from support.elaborated_specs import assert_arrays_close
from support.paper_equations import (
    Array,
    Arrays,
    assert_matches_equations,
    linear,
    sample_sentences,
    softmax,
)

import specc
from specc.cli import main as cli
from specc.weights.formats.safetensors import write_safetensors

TEXT = "the 0.25 -1.5 3e-2\na 1 0.5 -0.75\nfilm 2.5 0.125 -0.5\ngood -1 2 0.5\n. . . 0.5 0.5 0.5\n"


def pool_attention(w: Arrays, ids: Array, keep: Array) -> Arrays:
    """Yang et al. 2016, eq. 5 to 7."""
    x = w["embedding.weight"][ids]
    looked = softmax(np.tanh(linear(w, "attention.W", x)) @ w["attention.query"][0])
    return {"logits": linear(w, "output", looked @ x), "attention_weights": looked}


def test_the_spec_agrees_with_the_equations() -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"ids": ids, "keep": np.ones(len(ids), bool)}
        for ids in sample_sentences(rng, 11, (6, 1, 4))
    ]
    padded = {"ids": (0,), "keep": (0,)}
    assert_matches_equations(
        "glove_classifier", pool_attention, rows, padded, vocab=11, d=5, attention_dim=4, classes=3
    )


def test_vectors_are_read_from_the_text_format(tmp_path: Path) -> None:
    """Converted once; an index combines them with the classifier's weights, which are in a separate
    file.
    """
    (tmp_path / "glove.txt").write_text(TEXT)
    assert (
        cli.main(
            ["convert", str(tmp_path / "glove.txt"), "-o", str(tmp_path / "glove.safetensors")]
        )
        == 0
    )
    words = (tmp_path / "glove.vocab").read_text().splitlines()
    assert words == ["the", "a", "film", "good", ". . ."]
    rng = np.random.default_rng(0)
    shapes = {
        "attention.W.weight": (2, 3),
        "attention.W.bias": (2,),
        "attention.query": (1, 2),
        "output.weight": (2, 3),
        "output.bias": (2,),
    }
    head = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    write_safetensors(tmp_path / "head.safetensors", head)
    places = {"embedding.weight": "glove.safetensors"} | dict.fromkeys(head, "head.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))

    path = tmp_path / "model.onnx"
    specc.compile(
        "glove_classifier", path, weights=tmp_path, set={"vocab": 5, "d": 3, "attention_dim": 2}
    )
    ids = np.array([words.index(w) for w in ("a", "good", "film", ". . .")])
    table = np.array([line.split(" ")[-3:] for line in TEXT.splitlines()], float)
    wanted = pool_attention({**head, "embedding.weight": table}, ids, np.ones(4, bool))
    found = specc.load(path).run(ids=ids[None], keep=np.ones((1, 4), bool))
    for name, value in wanted.items():
        assert_arrays_close(found[name][0], value, name)

    # the sentence has the same tokens; `. . .` is one token only as listed
    ids = np.array([words.index(w) for w in ("a", "good", "film")])
    wanted = pool_attention({**head, "embedding.weight": table}, ids, np.ones(3, bool))
    found = specc.load(path).run(ids="A good film")
    for name, value in wanted.items():
        assert_arrays_close(found[name][0], value, f"{name} of a sentence")
