"""What programs that read `hf` packages feed and take, and nothing else: their shapes,
names and order, in small.

`run` computes one graph of a package from inputs by name; whether the reference or ONNX
Runtime does is its affair.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specc.ir.graph import Graph

Arrays = dict[str, NDArray[Any]]
Run = Callable[[str, Arrays], Mapping[str, NDArray[Any]]]


def caches(names: list[str]) -> list[str]:
    """The names that are caches, in the graph's order."""
    return [n for n in names if ".key" in n or ".value" in n]


def no_rows(graph: Graph, batch: int) -> Arrays:
    """Caches before the first token: [batch, heads, 0, features]."""
    made = {}
    for name in caches(list(graph.inputs)):
        _, heads, _, features = graph.inputs[name].type.shape
        made[name] = np.zeros((batch, heads.number or 0, 0, features.number or 0), np.float32)
    return made


def decoder_only(
    run: Run, graph: Graph, ids: NDArray[Any], mask: NDArray[Any], pieces: list[int]
) -> Iterator[NDArray[Any]]:
    """The logits of each piece of `ids`, as ORTModelForCausalLM takes it in: the mask
    whole, caches by order.
    """
    past, at = no_rows(graph, len(ids)), 0
    for count in pieces:
        given: Arrays = {
            "input_ids": ids[:, at : at + count],
            "attention_mask": mask[:, : at + count].astype(np.int64),
        }
        at += count
        made = run("model", {n: v for n, v in {**given, **past}.items() if n in graph.inputs})
        after = [made[n] for n in caches(list(graph.outputs))]
        past = dict(zip(caches(list(graph.inputs)), after, strict=True))
        yield made["logits"]


def encoder_decoder(
    run: Run,
    graphs: Mapping[str, Graph],
    source: NDArray[Any],
    mask: NDArray[Any],
    target: NDArray[Any],
    pieces: list[int],
) -> Iterator[NDArray[Any]]:
    """The logits of each piece of `target`, as ORTModelForSeq2SeqLM asks for them.

    It runs `decoder_model` once, keeps what that gives of the encoder, and goes on with
    `decoder_with_past_model`.
    """
    seen = mask.astype(np.int64)
    given: Arrays = {"input_ids": source, "attention_mask": seen}
    hidden = run("encoder_model", given)["last_hidden_state"]
    at, own, cross = 0, [np.zeros(0)], [np.zeros(0)]
    for count in pieces:
        name = "decoder_model" if at == 0 else "decoder_with_past_model"
        graph = graphs[name]
        given = {
            "input_ids": target[:, at : at + count],
            "encoder_hidden_states": hidden,
            "encoder_attention_mask": seen,
        }
        if at:
            by_layer = [
                v for n in range(0, len(own), 2) for v in (*own[n : n + 2], *cross[n : n + 2])
            ]
            given |= dict(zip(caches(list(graph.inputs)), by_layer, strict=True))
        at += count
        made = run(name, {n: v for n, v in given.items() if n in graph.inputs})
        outputs = caches(list(graph.outputs))
        own = [made[n] for n in outputs if "encoder" not in n]
        if name == "decoder_model":
            cross = [made[n] for n in outputs if "encoder" in n]
        yield made["logits"]
