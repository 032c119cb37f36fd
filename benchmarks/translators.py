"""Models that read a source once and write behind it, as several compilers make them:
each is a `Writer` of `decoders.py` whose source is fixed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from decoders import THREADS, Ints, Step, Writer, opened, traced

OURS = {"input_ids": "source", "input_features": "input_features"}
"""Names of transformers and of the specs."""


def of_specc(package: Path, given: Mapping[str, np.ndarray]) -> Writer:
    """A package of ours through the Python API."""
    import specc

    model = specc.load(package, threads=THREADS).writer
    names = set(model.input_signature.graph.inputs)
    # a spec may have the name transformers has, or its own
    known = {(n if n in names else OURS[n]): v for n, v in given.items() if n in OURS}

    def start(ids: Ints) -> tuple[Ints, Step]:
        prepared = model.input_signature.prepared({**known, model.input_signature.growing: ids})
        step = model.stepper(prepared).step
        return step(ids).argmax(1), lambda tokens: step(tokens[:, None]).argmax(1)

    return traced(start)


def of_whole(path: Path, given: Mapping[str, np.ndarray]) -> Writer:
    """One graph without caches: each token is computed with the source and all before it."""
    session = opened(path)
    taken = {i.name for i in session.get_inputs()}
    known = {n: v for n, v in given.items() if n in taken}

    def start(ids: Ints) -> tuple[Ints, Step]:
        text = ids

        def best() -> Ints:
            logits = session.run(None, {**known, "decoder_input_ids": text})[0]
            return logits[:, -1].argmax(1)

        def step(tokens: Ints) -> Ints:
            nonlocal text
            text = np.concatenate([text, tokens[:, None]], axis=1)
            return best()

        return best(), step

    return traced(start)


class _Graph:
    """A graph whose values stay with the runtime, by names that other graphs call them."""

    def __init__(self, path: Path) -> None:
        self.session = opened(path)
        self.inputs = [i.name for i in self.session.get_inputs()]
        self.outputs = [o.name for o in self.session.get_outputs()]

    def run(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Results by the names under which they are given to the next graph."""
        binding = self.session.io_binding()
        for name in self.inputs:
            binding.bind_ortvalue_input(name, known[name])
        for name in self.outputs:
            binding.bind_output(name)
        self.session.run_with_iobinding(binding)
        names = [n.replace("present", "past_key_values") for n in self.outputs]
        return dict(zip(names, binding.get_outputs(), strict=True))


def of_three(directory: Path, given: Mapping[str, np.ndarray]) -> Writer:
    """Encoder, first step and later steps, as Optimum writes and names them."""
    parts = ("encoder_model", "decoder_model", "decoder_with_past_model")
    encoder, first, later = (_Graph(_at(directory, part)) for part in parts)
    hold = onnxruntime.OrtValue.ortvalue_from_numpy

    def start(ids: Ints) -> tuple[Ints, Step]:
        known = {name: hold(v) for name, v in given.items()}
        known["encoder_hidden_states"] = next(iter(encoder.run(known).values()))
        if "attention_mask" in known:
            known["encoder_attention_mask"] = known["attention_mask"]

        def run(graph: _Graph, tokens: Ints) -> Ints:
            # keys and values of the source come from the first step and stay
            known.update(graph.run({**known, "input_ids": hold(tokens)}))
            logits: np.ndarray = known["logits"].numpy()
            return logits[:, -1].argmax(1)

        return run(first, ids), lambda tokens: run(later, tokens[:, None])

    return traced(start)


def _at(directory: Path, part: str) -> Path:
    """ValueError where the folder has other parts."""
    path = directory / f"{part}.onnx"
    if not path.exists():
        graphs = sorted(str(p.relative_to(directory)) for p in directory.rglob("*.onnx"))
        raise ValueError(f"the benchmark does not support {' and '.join(graphs)}")
    return path
