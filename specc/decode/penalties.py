"""What changes logits before a token is chosen: the penalty on repetition, and
temperature.

Pure functions on f32[rows vocab]; in float32 throughout, so that the same steps as ONNX
operations give the same bits.
"""

import numpy as np

from specc.decode.stepper import Bools, Floats, Ints


def first_seen(
    prompt: Ints, vocab: int, penalty: float, keep: Bools | None
) -> Bools | None:
    """What is penalized from the start; None where a penalty of 1 changes nothing, and
    nobody need keep count.
    """
    return None if penalty == 1 else seen_in(prompt, vocab, keep)


def seen_in(prompt: Ints, vocab: int, keep: Bools | None = None) -> Bools:
    """i64[rows n] → bool[rows vocab]: the tokens of each prompt; `keep` bool[rows n]
    says which are no padding.
    """
    seen = np.zeros((len(prompt), vocab), np.bool_)
    rows = np.broadcast_to(np.arange(len(prompt))[:, None], prompt.shape)
    # a prompt may hold what this output never writes
    known = (prompt >= 0) & (prompt < vocab)
    known = known if keep is None else known & np.asarray(keep, np.bool_)
    seen[rows[known], prompt[known]] = True
    return seen


def repetition(logits: Floats, seen: Bools, penalty: float) -> Floats:
    """Tokens that were there before made less likely, for penalties above 1: `x / p`
    where x > 0, else `x * p`.

    Keskar et al. 2019 (arXiv:1909.05858), sec. 4.1, which divides only; negative logits
    are multiplied, as all who use it do since, or they would gain.
    """
    if penalty == 1:
        return logits
    p = np.float32(penalty)
    return np.where(seen, np.where(logits > 0, logits / p, logits * p), logits)


def tempered(logits: Floats, temperature: float) -> Floats:
    """`x / temperature`: below 1 the likely become likelier, above 1 all more alike."""
    return logits if temperature == 1 else logits / np.float32(temperature)
