"""Compare your own checkpoints with transformers: `SPECC_CHECKPOINTS=DIR make parity-real`.

Compiles each directory below DIR that contains a config.json. Inputs are the lines of the *.txt
files in DIR and its *.png and *.jpg images; without them, or without a tokenizer, random token ids
and values, which the table reports. The table has one line per directory: the graph, the inputs,
the largest difference of the outputs, and whether both generate the same 20 tokens.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

import specc
from specc.api import Model
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.model_definition import ModelDefinition as Meant

TOLERANCE = 1e-5
MAX_PROMPT = 48
"""Maximum number of prompt tokens."""
MAX_NEW_TOKENS = 20
PUBLISHED_INPUTS = {
    "source": "input_ids", "source_keep": "attention_mask", "target": "decoder_input_ids",
    "target_keep": "decoder_attention_mask", "ids": "input_ids", "keep": "attention_mask",
}  # fmt: skip
"""Our input names to those of transformers, where they differ."""
TOKEN_INPUTS = {
    "input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "token_type_ids",
}  # fmt: skip
Arrays = dict[str, NDArray[Any]]


@dataclass
class CheckpointRow:
    """One line of the table."""

    directory: str
    family: str = ""
    inputs: str = ""
    worst: float | None = None
    generates: str = ""
    error: str = ""

    @property
    def has_passed(self) -> bool:
        """Whether every comparison passed."""
        return not self.error and self.generates != "no"

    def __str__(self) -> str:
        worst = "" if self.worst is None else f"{self.worst:.1e}"
        verdict = self.error or ("agrees" if self.has_passed else "writes something else")
        return f"| {self.directory} | {self.family} | {self.inputs} | {worst} | {self.generates} | {verdict} |"


TABLE_HEAD = "| folder | graph | inputs | worst difference | writes | |\n|---|---|---|---|---|---|"


def compare_checkpoint(directory: Path, home: Path) -> CheckpointRow:
    """Compare one checkpoint; an error is reported in its row and does not stop the run."""
    row = CheckpointRow(str(directory.relative_to(home)))
    try:
        _compare(directory, home, row)
    except SpeccError as failed:
        first = failed.diagnostics[0]
        row.error = f"{first.code}: {first.title}"
    except Exception as error:  # transformers may raise anything; the row reports it
        row.error = (
            f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
        )
    return row


def _compare(directory: Path, home: Path, row: CheckpointRow) -> None:
    found = open_spec(str(directory))
    model = elaborate_spec(found)
    row.family = f"{model.name} {model.graph.name}"
    model_class = _class_of(
        found.config_options.config_file.to_python() if found.config_options.config_file else {}
    )
    hf_model = model_class.from_pretrained(directory, dtype=torch.float64).eval()
    inputs, row.inputs = _inputs(model, directory, home)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "model.onnx"
        specc.compile(directory, path)
        ours = specc.load(path)
        row.worst = max(_apart(ours.run(**given), _published(hf_model, given)) for given in inputs)
        if row.worst > TOLERANCE:
            row.error = "differs"
        if model.generation is not None and _only_text(model):
            package = Path(temporary) / "package"
            specc.compile(
                directory, package, graphs="step" if "source" not in inputs[0] else "encode,step"
            )
            row.generates = _writes(
                specc.load(package), hf_model, inputs[0], model.generation.sequence_input
            )


def _only_text(model: Meant) -> bool:
    """Whether all inputs of a model are tokens."""
    return {PUBLISHED_INPUTS.get(name, name) for name in model.graph.inputs} <= TOKEN_INPUTS


def _class_of(config: Mapping[str, Any]) -> Any:
    """Return the transformers class that a config.json names."""
    names = config.get("architectures") or []
    kinds = [getattr(transformers, name, None) for name in names]
    if not kinds or kinds[0] is None:
        raise ValueError(f"transformers has no class {', '.join(names) or '(none is named)'}")
    return kinds[0]


def _published(hf_model: Any, inputs: Arrays) -> Mapping[str, Any]:
    """Return the outputs of the transformers model for our inputs, by its output names."""
    tensors = {}
    for name, value in inputs.items():
        tensor = torch.from_numpy(value)
        tensor = tensor.double() if tensor.is_floating_point() else tensor.long()
        tensors[PUBLISHED_INPUTS.get(name, name)] = tensor
    with torch.no_grad():
        outputs = hf_model(**tensors)
    return {n: v for n, v in outputs.items() if isinstance(v, torch.Tensor)}


def _apart(ours: Arrays, expected: Mapping[str, Any]) -> float:
    """Return the largest difference of outputs that both models have, relative to the largest
    absolute value.
    """
    common = [
        name
        for name in ours
        if name in expected and ours[name].shape == tuple(expected[name].shape)
    ]
    if not common:
        raise ValueError(
            f"no result has one name on both sides: {', '.join(ours)} and {', '.join(expected)}"
        )
    worst = 0.0
    for name in common:
        wanted = expected[name].double().numpy()
        largest = float(np.abs(wanted).max(initial=0)) or 1.0
        worst = max(worst, float(np.abs(ours[name] - wanted).max(initial=0)) / largest)
    return worst


def _inputs(model: Meant, directory: Path, home: Path) -> tuple[list[Arrays], str]:
    """Return a batch of 1 for each text or image of the user, and a description of the inputs."""
    rng = np.random.default_rng(0)
    texts = [
        line
        for path in sorted(home.glob("*.txt"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    images = [path for end in ("png", "jpg", "jpeg") for path in sorted(home.glob(f"*.{end}"))]
    samples: list[Arrays] = []
    sources: set[str] = set()
    for index in range(max(1, min(3, len(texts) or len(images) or 1))):
        sample: Arrays = {}
        for name, value in model.graph.inputs.items():
            published_name = PUBLISHED_INPUTS.get(name, name)
            if published_name in ("input_ids", "decoder_input_ids"):
                sample[name] = _ids(model, name, directory, texts, index, sources, rng)
            elif published_name == "pixel_values" and images:
                sample[name] = _pixels(directory, images[index % len(images)])
                sources.add("pictures")
            elif value.type.dtype.startswith("f"):
                shape = [dim.number or 7 for dim in value.type.shape]
                sample[name] = rng.standard_normal([1, *shape[1:]]).astype(np.float32)
                sources.add("random numbers")
        samples.append(sample)
    return samples, ", ".join(sorted(sources))


def _ids(
    model: Meant,
    name: str,
    directory: Path,
    texts: list[str],
    index: int,
    sources: set[str],
    rng: Any,
) -> NDArray[Any]:
    """Return the token ids of a text if there are texts and a tokenizer, else random ids."""
    if (
        texts
        and (directory / "tokenizer.json").exists()
        and PUBLISHED_INPUTS.get(name, name) == "input_ids"
    ):
        sources.add("texts")
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        return np.array([tokenizer(texts[index % len(texts)])["input_ids"][:MAX_PROMPT]])
    sources.add("random ids")
    tables = [
        v.type.shape[0].number or 2 for v in model.graph.parameters.values() if v.type.rank == 2
    ]
    words = int(model.config.get("vocab", 0) or max(tables, default=2))  # type: ignore[call-overload]
    return rng.integers(3, max(4, words), (1, 7 + index))


def _pixels(directory: Path, image_path: Path) -> NDArray[Any]:
    """Return an image as the transformers processor preprocesses it."""
    from PIL import Image

    processor = transformers.AutoImageProcessor.from_pretrained(directory)
    with Image.open(image_path) as opened:
        pixels = processor(opened.convert("RGB"), return_tensors="np")
    return pixels["pixel_values"].astype(np.float32)  # type: ignore[no-any-return]


def _writes(ours: Model, hf_model: Any, inputs: Arrays, growing: str) -> str:
    """Return True if both models generate the same tokens for the first text."""
    is_decoder_only = PUBLISHED_INPUTS.get(growing, growing) == "input_ids"
    prompt_name = (
        growing
        if is_decoder_only
        else next(n for n in inputs if PUBLISHED_INPUTS.get(n, n) == "input_ids")
    )
    ids = inputs[prompt_name]
    options = {"do_sample": False, "num_beams": 1, "max_new_tokens": MAX_NEW_TOKENS}
    try:
        with torch.no_grad():
            outputs = hf_model.generate(torch.from_numpy(ids), pad_token_id=0, **options)
    except ValueError:
        return "not asked"  # the config has no start token
    start = ids.shape[1] if is_decoder_only else 1
    expected = outputs[0, start:].tolist()
    results = ours.generate(
        max_tokens=MAX_NEW_TOKENS, strategy="greedy", **{prompt_name: ids}
    ).results()
    actual = list(results[0][0].tokens)
    # one side returns the stop token, the other does not
    same = actual[: len(expected)] == expected[: len(actual)]
    return "yes" if same and abs(len(actual) - len(expected)) <= 1 else "no"


def list_checkpoints(home: Path) -> Iterator[Path]:
    """Yield each directory below `home` that contains a config.json, sorted by path."""
    yield from sorted(path.parent for path in home.rglob("config.json"))


def main() -> int:
    """Print the table row by row. Return 1 if a row differs, 2 if there are no checkpoints."""
    home = Path(os.environ.get("SPECC_CHECKPOINTS", "")).expanduser()
    found = (
        list(list_checkpoints(home))
        if os.environ.get("SPECC_CHECKPOINTS") and home.is_dir()
        else []
    )
    if not found:
        print(
            "name a folder of checkpoints: SPECC_CHECKPOINTS=DIR make parity-real", file=sys.stderr
        )
        return 2
    transformers.logging.set_verbosity_error()
    print(TABLE_HEAD)
    good = True
    for directory in found:
        row = compare_checkpoint(directory, home)
        good = good and row.has_passed
        print(row, flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
