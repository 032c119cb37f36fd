"""Compiles large checkpoints whose files are sparse, and says what that takes: seconds, processor seconds
and memory.

    python benchmarks/compile_large.py            # a Llama of 1 GB in f32, and one of 7 B in bf16 (13.5 GB)
    python benchmarks/compile_large.py --tiny     # the same of a few megabytes: does it run?

The files hold zeros that no disk stores; each is read once before, so that the page cache is warm where
memory holds it. Everything is checked as ever: shapes, content hash, and every value for NaN.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import measure

SPECC = (sys.executable, "-m", "specc")
CHUNK = 1 << 24


@dataclass(frozen=True)
class Sizes:
    """A Llama, how its numbers are stored, and the seconds that it may take."""

    name: str
    dtype: str
    wide: int
    hidden: int
    layers: int
    words: int
    goal: float


LARGE = (
    Sizes("1 GB, f32", "F32", 1024, 2816, 14, 32000, 2),
    Sizes("7 B, bf16", "BF16", 4096, 11008, 32, 32000, 15),
)
TINY = (
    Sizes("tiny, f32", "F32", 64, 128, 2, 1000, 2),
    Sizes("tiny, bf16", "BF16", 64, 128, 2, 1000, 2),
)


def tensors(sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes of a Llama's file."""
    wide, hidden = sizes.wide, sizes.hidden
    yield "model.embed_tokens.weight", (sizes.words, wide)
    for n in range(sizes.layers):
        layer = f"model.layers.{n}"
        for part in "qkvo":
            yield f"{layer}.self_attn.{part}_proj.weight", (wide, wide)
        yield f"{layer}.mlp.gate_proj.weight", (hidden, wide)
        yield f"{layer}.mlp.up_proj.weight", (hidden, wide)
        yield f"{layer}.mlp.down_proj.weight", (wide, hidden)
        yield f"{layer}.input_layernorm.weight", (wide,)
        yield f"{layer}.post_attention_layernorm.weight", (wide,)
    yield "model.norm.weight", (wide,)
    yield "lm_head.weight", (sizes.words, wide)


def write(sizes: Sizes, directory: Path) -> int:
    """A checkpoint's folder; gives the bytes of its weights."""
    directory.mkdir()
    heads = sizes.wide // 32 if sizes.wide < 1024 else sizes.wide // 128
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": sizes.words,
        "hidden_size": sizes.wide,
        "intermediate_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": False,
    }
    (directory / "config.json").write_text(json.dumps(config))
    header: dict[str, object] = {}
    at = 0
    for name, shape in tensors(sizes):
        end = at + prod(shape) * (4 if sizes.dtype == "F32" else 2)
        header[name] = {"dtype": sizes.dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)  # zeros that take no room
    return at


def warmed(file: Path) -> None:
    """Read once, so that the disk is no part of what is measured."""
    with file.open("rb") as opened:
        while opened.read(CHUNK):
            pass


def row(sizes: Sizes, directory: Path) -> str:
    """What one checkpoint takes, as a row of the table: once as a file that points into the checkpoint, once
    as a package of every graph.
    """
    place = directory / sizes.dtype
    size = write(sizes, place)
    warmed(place / "model.safetensors")
    cells = []
    for what in (
        ["-o", str(directory / f"{sizes.dtype}.onnx")],
        ["--graphs", "all", "-o", str(directory / f"{sizes.dtype}-all")],
    ):
        cost = measure.of_process([*SPECC, "compile", str(place), *what])
        cells.append(f"{cost.seconds:.1f} s, {cost.processor:.1f} s, {cost.megabytes:.0f} MB")
    return f"| {sizes.name} | {size / 1e9:.2f} GB | {' | '.join(cells)} | {sizes.goal:.0f} s |"


def main() -> None:
    """The table, a row a checkpoint."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="a few megabytes")
    parser.add_argument(
        "--directory", help="where to work (default: the system's temporary folder)"
    )
    args = parser.parse_args()
    print(f"{measure.machine()}\n")
    print(
        "| Llama | weights | one graph: wall, processor, memory | every graph | goal |\n|---|---|---|---|---|"
    )
    for sizes in TINY if args.tiny else LARGE:
        with tempfile.TemporaryDirectory(dir=args.directory) as directory:
            print(row(sizes, Path(directory)), flush=True)


if __name__ == "__main__":
    main()
