"""Measure the effect of quantization on the trained demo models: accuracy on validation data, file
sizes, and the divergence of a small Llama from float32.

    python docs/demos/measure_quantization.py
"""

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np

import specc
from specc.verification.quantization_error import OutputErrorStats

HERE = Path(__file__).parent
VALIDATION_COUNT = 200
"""Number of validation texts per demo."""
BATCH_SIZE = 50
INT4_EVERYWHERE: Mapping[str, object] = {"quantize": "int4", "quantize_all": True, "group_size": 32}
"""Compile options that also quantize small layers to 4 bits. All layers of the demos have fewer
than 65 536 weights and otherwise keep 8 bits.
"""
DEMO_OPTIONS: Mapping[str, Mapping[str, object]] = {
    "float32": {},
    "int8": {"quantize": "int8"},
    "int8-weights": {"quantize": "int8-weights"},
    "int4": {"quantize": "int4"},
    "int4 everywhere": INT4_EVERYWHERE,
    "int4 everywhere, round-to-nearest": {**INT4_EVERYWHERE, "calibration_samples": 0},
}
"""The rows of the table for each demo, and the compile options of each row."""


@dataclass(frozen=True)
class DemoScore:
    """The number of correct answers, the total number of answers, and the file size in bytes."""

    right: int
    count: int
    size: int


def import_demo_data(name: str) -> ModuleType:
    """Import the data module of a demo under a unique name."""
    spec = spec_from_file_location(f"demo_{name}", HERE / name / "data.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def load_validation_dates() -> list[tuple[str, str]]:
    """Return validation dates as pairs of text and ISO 8601."""
    pairs: list[tuple[str, str]] = import_demo_data("dates").make_validation_pairs(VALIDATION_COUNT)
    return pairs


def load_validation_numbers() -> list[tuple[str, str]]:
    """Return validation pairs of words and digits in both directions and two languages."""
    data = import_demo_data("numbers")
    ways = (
        data.make_english_to_digits_pair,
        data.make_german_to_digits_pair,
        data.make_digits_to_english_pair,
        data.make_digits_to_german_pair,
    )
    return [
        pair
        for way in ways
        for pair in data.make_validation_pairs(way, VALIDATION_COUNT // len(ways))
    ]


VALIDATION_TEXTS: Mapping[str, Callable[[], list[tuple[str, str]]]] = {
    "dates": load_validation_dates,
    "numbers": load_validation_numbers,
}


def score_text_generation(name: str, directory: Path, options: Mapping[str, object]) -> DemoScore:
    """Compute the exact-match score of a demo that generates text."""
    specc.compile(name, directory, graphs=["encode", "step"], **options)  # type: ignore[arg-type]
    model = specc.load(directory)
    pairs = VALIDATION_TEXTS[name]()
    right = 0
    for start in range(0, len(pairs), BATCH_SIZE):
        part = pairs[start : start + BATCH_SIZE]
        texts = [given for given, _ in part]
        made = model.generate(texts, strategy="greedy").results()
        right += sum(row[0].text == wanted for row, (_, wanted) in zip(made, part, strict=True))
    return DemoScore(right, len(pairs), measure_directory_size(directory))


def score_digits(directory: Path, options: Mapping[str, object]) -> DemoScore:
    """Compute the accuracy of the digits demo on its validation images."""
    from PIL import Image
    from sklearn.datasets import load_digits

    directory.mkdir()
    specc.compile("digits", directory / "digits.onnx", **options)  # type: ignore[arg-type]
    model = specc.load(directory / "digits.onnx")
    digits = load_digits()
    paper = np.round(255 * (1 - digits.images / 16)).astype(np.uint8)
    shown = [Image.fromarray(page) for page in paper[::5]]
    found = model.run(pixel_values=shown)["logits"].argmax(-1)
    right = int((found == digits.target[::5]).sum())
    return DemoScore(right, len(shown), measure_directory_size(directory))


def measure_directory_size(directory: Path) -> int:
    """Return the total size of the files in a directory in bytes."""
    return sum(path.stat().st_size for path in directory.iterdir())


def score_demo(name: str, directory: Path, options: Mapping[str, object]) -> DemoScore:
    """Compile a demo into `directory` and score it."""
    if name == "digits":
        return score_digits(directory, options)
    return score_text_generation(name, directory, options)


LLAMA_DIRECTORY = HERE / "learned" / "llama"
LLAMA_OPTIONS: Mapping[str, Mapping[str, object]] = {
    "int8": {"quantize": "int8"},
    "int8-weights": {"quantize": "int8-weights"},
    "int4, round-to-nearest": {"quantize": "int4", "calibration_samples": 0},
    "int4": {"quantize": "int4"},
    "int4, group size 32, round-to-nearest": {
        "quantize": "int4",
        "calibration_samples": 0,
        "group_size": 32,
    },
    "int4, group size 32": {"quantize": "int4", "group_size": 32},
}
"""The rows of the table for the small Llama, and the compile options of each row."""
SEED, TEXTS_READ, LONG = 2026, 32, 120


def iterate_divergence_rows(directory: Path) -> Iterator[str]:
    """Yield table rows that compare the next-token distributions with those of float32. The texts
    and the calibration data are generated with different seeds.
    """
    specc.compile(LLAMA_DIRECTORY, directory / "full", graphs=["score", "encode", "step"])
    full = specc.load(directory / "full")
    start = np.zeros((TEXTS_READ, 1), np.int64)
    made = full.generate(start, strategy="sample", seed=SEED, max_tokens=LONG, stop=[]).results()
    ids = np.array([[0, *row[0].tokens] for row in made])
    wanted = full.run(input_ids=ids)["logits"]
    for kind, options in LLAMA_OPTIONS.items():
        path = directory / f"{kind}.onnx"
        specc.compile(LLAMA_DIRECTORY, path, **options)  # type: ignore[arg-type]
        loss = OutputErrorStats()
        loss.add_result(specc.load(path).run(input_ids=ids)["logits"], wanted, is_logits=True)
        told = loss.metrics
        yield f"| {kind} | {told['kl']:.1e} | {told['changed']:.1%} |"


def main() -> None:
    """Print the tables of quantization results."""
    print("| demo | weights | correct | file size |\n|---|---|---|---|")
    for name in ("digits", *VALIDATION_TEXTS):
        for kind, options in DEMO_OPTIONS.items():
            if name == "digits" and "calibration_samples" in options:
                # digits is not generative, so its int4 weights are always rounded to nearest
                continue
            with tempfile.TemporaryDirectory() as directory:
                found = score_demo(name, Path(directory) / name, options)
            told = f"{found.right} of {found.count}"
            print(f"| {name} | {kind} | {told} | {found.size / 1000:.0f} kB |")
    print("\n| weights | KL divergence | top-1 token differs |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        for row in iterate_divergence_rows(Path(directory)):
            print(row)


if __name__ == "__main__":
    main()
