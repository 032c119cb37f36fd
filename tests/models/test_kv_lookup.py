"""`kv_lookup` agrees with a Python dictionary for exact matches, and with a softmax over shared
letters in NumPy for soft ones.
"""

from pathlib import Path

import numpy as np
from support.elaborated_specs import elaborate_with_config, run_reference
from support.paper_equations import Array, assert_matches_equations, softmax

import specc

NAMES = {"Luke": 1.0, "Donald": 2.0, "Jeff": 3.0, "Duke": 4.0}


def letters(names: list[str]) -> Array:
    return np.array([[ord(c) for c in name.ljust(8, "\0")] for name in names])


def database(asked: list[str]) -> dict[str, Array]:
    values = np.array([[[v] for v in NAMES.values()]], np.float32)
    return {"query": letters(asked)[None], "keys": letters(list(NAMES))[None], "values": values}


def compute_shared_letters(a: str, b: str) -> float:
    """Return the share of equal letters by position, relative to the longer name."""
    return sum(x == y for x, y in zip(a, b, strict=False)) / max(len(a), len(b), 1)


def test_names_without_shared_letters_have_equal_weights() -> None:
    given = database(["xyz"])
    weights = run_reference(elaborate_with_config("kv_lookup", match="soft"), {}, given)["weights"][
        0, 0
    ]
    assert np.allclose(weights, 0.25, rtol=0, atol=1e-15)


def test_exact_matches_equal_a_dictionary() -> None:
    """Missing names give zero."""
    asked = ["Duke", "Luke", "Leia", "Jeff"]
    found = run_reference(elaborate_with_config("kv_lookup"), {}, database(asked))["output"]
    assert found[0, :, 0].tolist() == [NAMES.get(name, 0.0) for name in asked]


def test_a_soft_match_prefers_the_nearest_name() -> None:
    """`Luka` is nearest to Luke, then to Duke."""
    given = database(["Luka"])
    weights = run_reference(elaborate_with_config("kv_lookup", match="soft"), {}, given)["weights"][
        0, 0
    ]
    assert [list(NAMES)[n] for n in np.argsort(-weights)][:2] == ["Luke", "Duke"]


def test_both_agree_with_the_formula_in_onnx() -> None:
    asked = (["Luke", "Han"], ["Jeff", "Duke"])
    rows = [{name: value[0] for name, value in database(names).items()} for names in asked]

    def exact(w: object, query: Array, keys: Array, values: Array) -> dict[str, Array]:
        same = np.array([[float((q == k).all()) for k in keys] for q in query])
        weights = same / np.maximum(same.sum(1, keepdims=True), 1)
        return {"output": weights @ values, "weights": weights}

    def soft(w: object, query: Array, keys: Array, values: Array) -> dict[str, Array]:
        names = [
            [bytes(n).rstrip(b"\0").decode() for n in side.astype(np.uint8)]
            for side in (query, keys)
        ]
        weights = np.stack(
            [
                softmax(np.array([6 * compute_shared_letters(a, b) for b in names[1]]))
                for a in names[0]
            ]
        )
        return {"output": weights @ values, "weights": weights}

    assert_matches_equations("kv_lookup", exact, rows, {})
    assert_matches_equations("kv_lookup", soft, rows, {}, match="soft", sharpness=6.0)


def test_queries_are_extracted_from_text(tmp_path: Path) -> None:
    """The same dictionary with a sentence as input; several names are several queries."""
    path = tmp_path / "kv.onnx"
    known = '["' + '", "'.join(NAMES) + '"]'
    specc.compile("kv_lookup", path, graph="lookup_names", set={"known": known})
    values = [[[v] for v in NAMES.values()]]
    model = specc.load(path)
    made = model.run(word="Duke Luke", names=" ".join(NAMES), values=values)
    assert made["output"][0, :, 0].tolist() == [NAMES["Duke"], NAMES["Luke"]]
