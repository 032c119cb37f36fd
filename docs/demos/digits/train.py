"""Convert the digits spec to a PyTorch module, and train it on the 8×8 digits of scikit-learn.

The model is not defined here: `specs/models/digits.yaml` defines the computation and the
preprocessing. `specc_torch` converts the spec to a module and batches images with the preprocessing
code of `specc run`, so that training and inference cannot differ (docs/training.md). Every fifth
image (index % 5 == 0) belongs to the validation set. The hyperparameters were chosen on other
splits.

    python docs/demos/digits/train.py
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import Module, functional

import specc_torch

HERE = Path(__file__).resolve()
SPEC = HERE.parents[3] / "specs" / "models" / "digits.yaml"
HELD_OUT = 5  # every fifth image, as in make_samples.py
MAX_INK = 16  # the maximum value of the data
BATCH = 64
RATE = 2e-3
DECAY = 0.05
SMOOTHING = 0.02  # label smoothing, for calibrated probabilities
TURN = math.radians(12)
STRETCH, SHIFT = 0.10, 0.14  # fractions of the image size


def load_digit_images(model: Module) -> tuple[Tensor, Tensor]:
    """Return all digits, preprocessed by the model's preprocessing, `f32[n, 1, 8, 8]`, and their
    classes, `i64[n]`.
    """
    digits = load_digits()
    paper = np.round(255 * (1 - digits.images / MAX_INK)).astype(np.uint8)
    rows = [
        {"pixel_values": Image.fromarray(page), "logits": str(digit)}
        for page, digit in zip(paper, digits.target, strict=True)
    ]
    inputs, wanted = specc_torch.batch(model, rows)
    return inputs["pixel_values"], wanted["logits"]


def select_validation_images(count: int) -> Tensor:
    """Return a boolean mask that selects the validation images among `count` images."""
    return torch.arange(count) % HELD_OUT == 0


def augment_images(pixels: Tensor, ground: float) -> Tensor:
    """Augment images by small rotations, scalings and shifts; new pixels have the value
    `ground`.
    """
    count = len(pixels)
    angle = (torch.rand(count) * 2 - 1) * TURN
    stretch = 1 + (torch.rand(count, 2) * 2 - 1) * STRETCH
    # the width of the image is 2 in these coordinates
    shift = (torch.rand(count, 2) * 2 - 1) * SHIFT * 2
    cos, sin = torch.cos(angle), torch.sin(angle)
    rows = torch.stack(
        [cos * stretch[:, 0], -sin, shift[:, 0], sin, cos * stretch[:, 1], shift[:, 1]], dim=1
    )
    grid = functional.affine_grid(
        rows.reshape(count, 2, 3), list(pixels.shape), align_corners=False
    )
    return functional.grid_sample(pixels - ground, grid, align_corners=False) + ground


def compute_accuracy(model: Module, pixels: Tensor, target: Tensor) -> float:
    """Compute the classification accuracy of the model on images."""
    with torch.no_grad():
        return float((model(pixel_values=pixels)["logits"].argmax(-1) == target).float().mean())


def train(model: Module, pixels: Tensor, target: Tensor, epochs: int) -> None:
    """Train the model in place for a number of epochs."""
    ground = float(pixels.min())
    gains = [p for p in model.parameters() if p.ndim < 2]
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    steps = epochs * math.ceil(len(pixels) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps, pct_start=0.1)
    for epoch in range(epochs):
        total = 0.0
        for chosen in torch.randperm(len(pixels)).split(BATCH):
            logits = model(pixel_values=augment_images(pixels[chosen], ground))["logits"]
            loss = functional.cross_entropy(logits, target[chosen], label_smoothing=SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(chosen)
        if epoch % 20 == 19 or epoch + 1 == epochs:
            print(f"epoch {epoch + 1:3d}  loss {total / len(pixels):.4f}")


def compute_confusion_matrix(model: Module, pixels: Tensor, target: Tensor) -> NDArray[np.int64]:
    """Return the confusion matrix, with true digits as rows and predicted digits as columns."""
    with torch.no_grad():
        read = model(pixel_values=pixels)["logits"].argmax(-1)
    table = np.zeros((10, 10), np.int64)
    np.add.at(table, (target.numpy(), read.numpy()), 1)
    return table


def main() -> None:
    """Train the model, print its validation accuracy, and save it next to the spec."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, default=SPEC.with_name("digits.safetensors"))
    parser.add_argument(
        "--force", action="store_true", help="replace files that were not written by specc"
    )
    args = parser.parse_args()
    # check the output paths before training
    specc_torch.check_output_path(args.output, force=args.force)

    torch.set_num_threads(
        1
    )  # one thread: small tensors do not benefit from more threads, and sums are reproducible
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    model = specc_torch.module(SPEC, init=args.seed)
    pixels, target = load_digit_images(model)
    kept = select_validation_images(len(pixels))
    print(
        f"{sum(p.numel() for p in model.parameters())} parameters, "
        f"{int((~kept).sum())} training images"
    )

    train(model, pixels[~kept], target[~kept], args.epochs)
    right = compute_accuracy(model, pixels[kept], target[kept])
    for digit, row in enumerate(compute_confusion_matrix(model, pixels[kept], target[kept])):
        wrong = ", ".join(f"{n} as {d}" for d, n in enumerate(row) if n and d != digit)
        print(f"  {digit}: {row[digit]} of {row.sum()} right{f'; {wrong}' if wrong else ''}")
    print(f"validation accuracy: {right:.2%} of {int(kept.sum())} images")
    specc_torch.save(model, args.output, force=args.force)
    print(f"wrote {args.output.name}, {args.output.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
