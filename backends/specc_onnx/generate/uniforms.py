"""The random generator of `specc.weights.random`, written as ONNX nodes on u64: the
same bits on every machine.

Keys are tensors of any shape, so a whole batch of streams is advanced at once. All
arithmetic is modulo 2**64, as unsigned integers have it in ONNX.
"""

from specc.text.diagnostic import fail
from specc.weights.random import GAMMA, M1, M2, fnv1a
from specc_onnx.lower import legal
from specc_onnx.lower.arrange import cast
from specc_onnx.lower.emitter import Emitter


def check_drawing(opset: int) -> None:
    """E0821 where the opset has no exclusive or, without which no random number can be made."""
    if not legal.exists("BitwiseXor", opset):
        fail(
            "E0821",
            f"a model that samples cannot be written at opset {opset}",
            notes=["random numbers need `BitwiseXor`, which came with opset 18"],
            helps=[
                f"leave `--opset` out for the usual one, {legal.USUAL}, or decode greedily"
            ],
        )


def stream(g: Emitter, seed: str, name: str) -> str:
    """`random.key_of`: the key of the stream called `name` under a seed, u64[], from
    `seed`, i64[].
    """
    return fold(
        g, _mix(g, cast(g, seed, "i64", "u64")), g.constant(fnv1a(name.encode()), "u64")
    )


def fold(g: Emitter, key: str, n: str) -> str:
    """`random.fold`: the key of sub-stream `n`, both u64 of shapes that fit."""
    return _mix(g, _word(g, key, n))


def unit(g: Emitter, key: str) -> str:
    """Element 0 of each stream, f32 in [0, 1): a whole number of 2**-24."""
    top = _shift(g, _word(g, key, g.constant(0, "u64")), 40)
    # 24 bits are left, which i64 and f32 hold exactly.
    whole = cast(g, cast(g, top, "u64", "i64"), "i64", "f32")
    return g.node("Mul", whole, g.constant(2.0**-24, "f32"))


def _word(g: Emitter, key: str, n: str) -> str:
    """`random.word`, as `mix(key + n · GAMMA + GAMMA)`."""
    steps = g.node("Mul", n, g.constant(GAMMA, "u64"))
    return _mix(g, g.node("Add", g.node("Add", key, g.constant(GAMMA, "u64")), steps))


def _mix(g: Emitter, z: str) -> str:
    z = g.node("Mul", _scrambled(g, z, 30), g.constant(M1, "u64"))
    z = g.node("Mul", _scrambled(g, z, 27), g.constant(M2, "u64"))
    return _scrambled(g, z, 31)


def _scrambled(g: Emitter, z: str, bits: int) -> str:
    """`z ^ z >> bits`."""
    return g.node("BitwiseXor", z, _shift(g, z, bits))


def _shift(g: Emitter, z: str, bits: int) -> str:
    return g.node("BitShift", z, g.constant(bits, "u64"), direction="RIGHT")
