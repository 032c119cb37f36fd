"""Where each shipped spec looks, as a drawing for its page in the gallery.

Specs that ship with trained weights look at a real input. The others are made small
and given weights that are drawn from a seed, as the tests make them: their pictures
show what looks at what, and what the mask hides, not what a trained model would find
there. The caption says which.
"""

import tempfile
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
from support.small_configs import SMALL_CONFIGS

import specc
from specc.cli.main import main
from specc.runtime.attention_views import render_attention, run_with_attention
from specc.runtime.attention_weights import find_attentions
from specc.verification.quantization_error import comparison_sizes
from specc.verification.verify_model import random_inputs

ROOT = Path(__file__).parents[1]
TRAINED = {
    "dates": "3 mai 1979",
    "digits": str(ROOT / "docs" / "demos" / "digits" / "seven.png"),
    "numbers": "dreihundertfünf",
}
"""What the trained models read in the gallery."""
WITHOUT = {"xor"}
"""A trained model that has nothing to look with."""


def drawn(name: str, path: Path) -> str:
    """Draw the last attention of a shipped spec into `path`, an SVG. Gives the caption;
    nothing, and no file, for a spec without an attention.
    """
    if name in WITHOUT:
        return ""
    with tempfile.TemporaryDirectory() as directory:
        if name in TRAINED:
            return _trained(name, path, Path(directory))
        return _drawn_small(name, path, Path(directory))


def _trained(name: str, path: Path, directory: Path) -> str:
    """Of the trained model, on a real input."""
    given, made = TRAINED[name], str(directory / name)
    # a model that reads a picture writes nothing, and is one file
    one_file = given.endswith(".png")
    words = ["-o", f"{made}.onnx"] if one_file else ["--graphs", "all", "-o", made]
    _run("compile", name, *words)
    _run("run", words[-1], given, "--attention", str(path))
    shown = Path(given).name if one_file else given
    return f"Where the trained model looks, given `{shown}`."


def _drawn_small(name: str, path: Path, directory: Path) -> str:
    """Of a small model with drawn weights, on a drawn input."""
    sets, model = SMALL_CONFIGS[name], directory / "model.onnx"
    specc.compile(name, model, set=sets, init=0)
    whole = specc.load(model).whole
    graph = whole.manifest.graph
    if not find_attentions(graph):
        return ""
    given = random_inputs(graph, comparison_sizes(graph), np.random.default_rng(0))
    path.write_bytes(render_attention(run_with_attention(whole, given), ".svg").content)
    config = ", ".join(f"`{key}={value}`" for key, value in sets.items())
    small = f" made small ({config}), with" if config else " with"
    return (
        f"What looks at what: the last attention of the model{small} weights and an input"
        " that are drawn at random. A trained model looks elsewhere; what is gray is "
        "hidden by the mask."
    )


def _run(*words: str) -> None:
    """A command, which must succeed and keeps its words to itself."""
    heard = StringIO()
    with redirect_stdout(heard), redirect_stderr(heard):
        status = main([*words, "--quiet"])
    if status:
        raise RuntimeError(f"specc {' '.join(words)} ended with {status}: {heard.getvalue()}")
