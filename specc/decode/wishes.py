"""The settings of writing as a caller in Python may name them: for type checkers and for
editors, which complete them. `specc.decode.options` checks the values.
"""

from collections.abc import Sequence
from typing import Literal, TypedDict


class Wishes(TypedDict, total=False):
    """docs/generation.md says what each is for. None is as good as not given."""

    strategy: Literal["greedy", "sample", "beam"] | None
    max_tokens: int | None
    max_length: int | None
    min_tokens: int | None
    min_length: int | None
    start: int | Sequence[int] | None
    stop: int | Sequence[int] | None
    stop_strings: str | Sequence[str] | None
    pad: int | None
    last_token: int | None
    suppress: int | Sequence[int] | None
    begin_suppress: int | Sequence[int] | None
    begin: Sequence[int | Sequence[int]] | None
    no_repeat: int | None
    banned: Sequence[int | Sequence[int]] | None
    repetition_penalty: float | None
    log_probabilities: bool | None
    seed: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    epsilon_cutoff: float | None
    eta_cutoff: float | None
    beams: int | None
    length_penalty: float | None
    early_stopping: bool | Literal["never"] | None
    n_best: int | None
    renormalize: bool | None
