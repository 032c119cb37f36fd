"""`memory_network` agrees with the paper's equations in NumPy, sentence by sentence, for stories of
different lengths.
"""

import numpy as np
import pytest
from support.paper_equations import Array, Arrays, assert_matches_equations, softmax

SIZE = {"vocab": 13, "d": 4, "hops": 3, "max_facts": 6}


def embed_sentence(table: Array, ids: Array, order: str) -> Array:
    """Sec. 4.1: the sum of l_j * A x_j over the tokens."""
    words = [i for i in ids if i]
    count, d = len(words), SIZE["d"]
    vector = np.zeros(d)
    for j, word in enumerate(words, start=1):
        k = np.arange(1, d + 1)
        weight = (1 - j / count) - (k / d) * (1 - 2 * j / count)
        vector += table[word] * (weight if order == "position" else 1.0)
    return vector


def answer_question(w: Arrays, story: Array, question: Array, tying: str, order: str) -> Arrays:
    hops, facts = SIZE["hops"], len(story)
    adjacent = tying == "adjacent"
    tables = [w[f"tables.{n}.weight"] for n in range(hops if adjacent else 2)]
    times = [w[f"times.{n}.weight"] for n in range(hops + 1 if adjacent else 2)]
    tables += [w["answer.weight"]] if adjacent else []
    u, looked = embed_sentence(tables[0], question, order), []
    for hop in range(hops):
        a, c = (hop, hop + 1) if adjacent else (0, 1)
        # the last fact is the first in time (sec. 4.1)
        m = np.stack(
            [
                embed_sentence(tables[a], f, order) + times[a][facts - 1 - i]
                for i, f in enumerate(story)
            ]
        )
        said = np.stack(
            [
                embed_sentence(tables[c], f, order) + times[c][facts - 1 - i]
                for i, f in enumerate(story)
            ]
        )
        p = softmax(m @ u)
        u = (u if adjacent else w["H.weight"] @ u) + p @ said
        looked.append(p)
    return {"logits": w["answer.weight"] @ u, "attention_weights": np.stack(looked)}


@pytest.mark.parametrize("order", ["position", "bag"])
@pytest.mark.parametrize("tying", ["adjacent", "layerwise"])
def test_the_spec_agrees_with_the_equations(tying: str, order: str) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for facts, words, asked in ((4, 5, 3), (1, 2, 1), (6, 3, 4)):
        story = rng.integers(1, 13, (facts, 5))
        story[:, -1] *= rng.random(facts) < 0.5  # some facts are shorter
        story[:, words:] = 0
        question = np.zeros(4, np.int64)
        question[:asked] = rng.integers(1, 13, asked)
        keep = np.ones(facts, bool)
        rows.append({"story": story, "question": question, "keep": keep})

    def model(w: Arrays, story: Array, question: Array, keep: Array) -> Arrays:
        return answer_question(w, story, question, tying, order)

    assert_matches_equations(
        "memory_network",
        model,
        rows,
        {"story": (0,), "keep": (0,)},
        tying=tying,
        order=order,
        **SIZE,
    )
