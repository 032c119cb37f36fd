"""What a user would run instead: `torch.onnx.export(dynamo=True)` of a checkpoint.
`export.py NAME FOLDER OUT`.
"""

import sys
from pathlib import Path

import torch
from models import published, tensors


def main(name: str, directory: str, out: str) -> None:
    """Load the checkpoint and export it with dynamic batch and length."""
    model = published(name, Path(directory))
    shape = (2,) if name == "vit" else (2, 16)
    batch, length = torch.export.Dim.DYNAMIC, torch.export.Dim.DYNAMIC
    axes = {0: batch} if name == "vit" else {0: batch, 1: length}
    given = tensors(name, shape)
    torch.onnx.export(
        model, given, out, dynamo=True, opset_version=23, dynamic_shapes=((axes,) * len(given),),
        verbose=False,
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
