"""Train hard attention by REINFORCE (Williams, 1992) as in Mnih et al., 2014, arXiv:1406.6247, sec.
3.1: the built-in spec `glimpses` learns to locate and classify a digit on a larger, noisy canvas.

Cropping is not differentiable, so no gradient reaches the location network through the crops. The
graph `sampled` samples locations l_t from the Gaussian policy N(mean_t, std²); the graph `policy`
takes these locations as constants and returns the logits and the means, and the loss is

    cross_entropy(logits, target)
    - 0.1 · sum over t of (reward - baseline) · log N(l_t; mean_t, std²)

with reward 1 for a correct classification, else 0. The baseline is the mean reward of the other
samples of the same image. The data are the 8×8 digits of scikit-learn. Every fifth digit (index % 5
== 0) belongs to the validation set.

    python docs/demos/glimpses/train.py
"""

import argparse
import math

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.func import functional_call
from torch.nn import Module, functional

import specc_torch

HELD_OUT = 5  # every fifth digit
INK = 16  # the maximum value of the data
CANVAS, NOISE = 24, 0.1  # canvas size in pixels; maximum value of the background noise
GLIMPSES, STD = 4, 0.2
SAMPLES = 4  # number of trajectories for each image of a batch
BATCH, RATE = 64, 5e-3
POLICY_WEIGHT = 0.1  # weight of the REINFORCE term; a small weight lets the classifier learn first
SIZES = {
    "image": CANVAS,
    "patch": 8,
    "scales": 2,
    "scale_factor": 3,
    "glimpses": GLIMPSES,
    "location_std": STD,
    "glimpse_dim": 64,
    "hidden": 128,
}


def place_digits(digits: Tensor, generator: torch.Generator) -> Tensor:
    """Place each digit `f32[n, 8, 8]` at a random position of a noisy canvas. Return the canvases
    `f32[n, 1, CANVAS, CANVAS]`.
    """
    canvas = NOISE * torch.rand(len(digits), 1, CANVAS, CANVAS, generator=generator)
    size = digits.shape[-1]
    corners = torch.randint(CANVAS - size + 1, (len(digits), 2), generator=generator)
    for image, digit, (top, left) in zip(canvas, digits, corners.tolist(), strict=True):
        image[0, top : top + size, left : left + size] += digit
    return canvas


def sample_locations(sampled: Module, policy: Module, pixels: Tensor, noise: Tensor) -> Tensor:
    """Sample glimpse locations, `f32[n, GLIMPSES, 2]`, with the parameters of `policy`."""
    parameters = dict(policy.named_parameters())
    inputs = {"pixel_values": pixels, "noise": noise}
    with torch.no_grad():
        return functional_call(sampled, parameters, kwargs=inputs)["locations"]


def compute_loss(policy: Module, pixels: Tensor, locations: Tensor, target: Tensor) -> Tensor:
    """Compute the cross entropy plus the REINFORCE surrogate loss. `SAMPLES` consecutive batch
    elements are samples of one image.
    """
    outputs = policy(pixel_values=pixels, locations=locations)
    reward = (outputs["logits"].argmax(-1) == target).float().reshape(-1, SAMPLES)
    baseline = (reward.sum(1, keepdim=True) - reward) / (SAMPLES - 1)
    advantage = (reward - baseline).reshape(-1, 1)
    # the location after glimpse t is sampled around the mean at t; the last mean is never used
    log_probability = -((locations[:, 1:] - outputs["means"][:, :-1]) ** 2).sum(-1) / (2 * STD**2)
    reinforce = -(advantage * log_probability).sum(1).mean()
    return functional.cross_entropy(outputs["logits"], target) + POLICY_WEIGHT * reinforce


def compute_accuracy(policy: Module, pixels: Tensor, locations: Tensor, target: Tensor) -> float:
    """Compute the classification accuracy for given glimpse locations."""
    with torch.no_grad():
        logits = policy(pixel_values=pixels, locations=locations)["logits"]
    return float((logits.argmax(-1) == target).float().mean())


def train(policy: Module, sampled: Module, digits: Tensor, target: Tensor, epochs: int) -> None:
    """Train the policy in place."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(policy.parameters(), RATE)
    steps = epochs * math.ceil(len(digits) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps)
    for epoch in range(epochs):
        total = 0.0
        for batch in torch.randperm(len(digits), generator=generator).split(BATCH):
            pixels = place_digits(digits[batch], generator).repeat_interleave(SAMPLES, 0)
            labels = target[batch].repeat_interleave(SAMPLES, 0)
            noise = torch.randn(len(pixels), GLIMPSES, 2, generator=generator)
            locations = sample_locations(sampled, policy, pixels, noise)
            loss = compute_loss(policy, pixels, locations, labels)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(batch)
        if epoch % 10 == 9 or epoch + 1 == epochs:
            print(f"epoch {epoch + 1:3d}  loss {total / len(digits):.3f}", flush=True)


def print_accuracies(policy: Module, sampled: Module, digits: Tensor, target: Tensor) -> None:
    """Print the validation accuracy with the policy's, random and central locations."""
    generator = torch.Generator().manual_seed(1)
    pixels = place_digits(digits, generator)
    zeros = torch.zeros(len(pixels), GLIMPSES, 2)
    learned = sample_locations(sampled, policy, pixels, zeros)
    uniform = 2 * torch.rand(zeros.shape, generator=generator) - 1
    for name, locations in (("learned", learned), ("uniform", uniform), ("center", zeros)):
        accuracy = compute_accuracy(policy, pixels, locations, target)
        print(f"validation accuracy with {name} locations: {accuracy:.1%}")


def main() -> None:
    """Train the policy, print its validation accuracy, and save it if requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", help="write the parameters as safetensors")
    args = parser.parse_args()
    torch.set_num_threads(1)  # one thread: small tensors do not benefit from more threads
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    policy = specc_torch.module("glimpses", graph="policy", set=SIZES, init=args.seed)
    sampled = specc_torch.module("glimpses", graph="sampled", set=SIZES, init=args.seed)
    data = load_digits()
    digits = torch.from_numpy(data.images).float() / INK
    target = torch.from_numpy(data.target).long()
    kept = torch.arange(len(digits)) % HELD_OUT == 0
    train(policy, sampled, digits[~kept], target[~kept], args.epochs)
    print_accuracies(policy, sampled, digits[kept], target[kept])
    if args.output:
        specc_torch.save(policy, args.output)


if __name__ == "__main__":
    main()
