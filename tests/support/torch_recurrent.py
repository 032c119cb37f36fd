"""What the parity tests of recurrent specs share: torch's layers over the rows that exist."""

from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from support.published import randomized


def over_kept(
    layer: nn.Module, rows: torch.Tensor, keep: torch.Tensor, start: Any = None
) -> tuple[torch.Tensor, Any]:
    """A layer over the kept rows of each sample alone, packed; results where their rows
    were, zero elsewhere.
    """
    counts = keep.sum(1)
    order = (~keep).long().argsort(dim=1, stable=True)[..., None]
    together = rows.gather(1, order.expand_as(rows))
    found, states = layer(pack_padded_sequence(together, counts, True, enforce_sorted=False), start)
    out, _ = pad_packed_sequence(found, True, total_length=rows.shape[1])
    return torch.zeros_like(out).scatter(1, order.expand(-1, -1, out.shape[2]), out), states


class LanguageModel(nn.Module):
    """Words to scores of the next one, as in PyTorch's own example of a word language model."""

    def __init__(
        self,
        kind: type[nn.RNNBase],
        *,
        vocab: int,
        width: int,
        hidden: int,
        layers: int,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = nn.Embedding(vocab, width)
        self.rnn = kind(width, hidden, num_layers=layers, batch_first=True)  # type: ignore[call-arg]
        self.decoder = nn.Linear(hidden, vocab)
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.decoder(over_kept(self.rnn, self.encoder(ids), keep)[0])
        return made


def language_model(kind: type[nn.RNNBase], **sizes: Any) -> LanguageModel:
    """A random one."""
    made: LanguageModel = randomized(LanguageModel(kind, **sizes))
    return made
