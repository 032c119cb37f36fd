"""What operations and options are called elsewhere, and what is written here instead."""

from collections.abc import Collection

from specc.elaborate.mends import MENDS
from specc.text.suggest import did_you_mean, folded

BY_NAME = {folded(name): mend for mend in MENDS for name in mend.names}
"""By name, without case and separators."""

LIBRARIES = frozenset(
    {
        *("torch", "nn", "functional", "F", "tf", "keras", "layers", "ops"),
        *("np", "numpy", "jnp", "jax", "lax", "flax", "mx", "math"),
        *("einops", "transformers", "onnx", "self", "module", "model"),
    }
)
"""What stands before a point elsewhere."""

OPTIONS = {
    "dim": "axis",
    "dims": "axis",
    "axes": "axis",
    "kernelsize": "kernel",
    "numheads": "heads",
    "nhead": "heads",
    "nheads": "heads",
    "numkvheads": "kv_heads",
    "outfeatures": "out",
    "outchannels": "out",
    "units": "out",
    "filters": "out",
    "hiddensize": "hidden",
    "hiddendim": "hidden",
    "dimfeedforward": "hidden",
    "intermediatesize": "hidden",
    "activation": "act",
    "numembeddings": "size",
    "vocabsize": "size",
    "embeddingdim": "dim",
    "epsilon": "eps",
    "numlayers": "layers",
    "numgroups": "groups",
    "softcap": "cap",
    "attnmask": "mask",
    "attentionmask": "mask",
    "min": "low",
    "max": "high",
    "repeats": "length",
    "shifts": "by",
    "depth": "size",
    "numclasses": "size",
    "splitsizeorsections": "into",
    "dtype": "to",
}
"""Options of elsewhere, without case and separators, and what they are called here."""


def elsewhere(name: str, known: Collection[str]) -> str:
    """What is written here for an operation of another language; empty for none."""
    mend = BY_NAME.get(folded(name))
    return mend.text if mend and all(need in known for need in mend.needs) else ""


def of_library(path: str, known: Collection[str]) -> str:
    """What is written here for `nn.Linear` or `x.reshape`; empty where nothing is known."""
    name = path.rpartition(".")[2]
    if mend := elsewhere(name, known):
        return mend
    near = name if name in known else did_you_mean(name, known)
    return f"write `{near}`; `specc doc {near}` says what it takes" if near else ""


def option_meant(name: str, known: Collection[str]) -> str | None:
    """The option of this name in other languages, or one that is spelled nearly so."""
    foreign = OPTIONS.get(folded(name))
    return foreign if foreign in known else did_you_mean(name, known)
