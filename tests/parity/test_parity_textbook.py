"""`textbook_decoder` and `rnn_attention` match PyTorch modules: GRU encoder and decoder, RNN cell,
and attention scores from linear layers.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.padded_batches import PaddingMask, Signal, TokenIds, make_samples
from support.published_models import (
    assert_matches_published,
    build_weighted_spec,
    list_module_weights,
)
from torch import Tensor, nn

pytestmark = pytest.mark.parity

WORDS, HIDDEN, LAYERS, SOURCE, TARGET = 5, 6, 2, 13, 11
FEATURES, ATT = 4, 3


class Additive(nn.Module):
    """v · tanh(W q + U k), without biases."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.U = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.v = nn.Linear(HIDDEN, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """The weights [1, n] of keys [1, n, d]."""
        scores = self.v(torch.tanh(self.W(query)[:, None] + self.U(keys)))
        return scores[..., 0].softmax(-1)


class Textbook(nn.Module):
    """The translator of the tutorials, one sentence at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict(
            {
                "embedding": nn.Embedding(SOURCE, WORDS),
                "rnn": nn.GRU(WORDS, HIDDEN, LAYERS, batch_first=True),
            }
        )
        self.decoder = nn.ModuleDict(
            {
                "embedding": nn.Embedding(TARGET, WORDS),
                "attention": Additive(),
                "rnn": nn.GRU(WORDS + HIDDEN, HIDDEN, LAYERS, batch_first=True),
                "dense": nn.Linear(HIDDEN, TARGET),
            }
        )

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and weights for each word of the target; [1, n]."""
        memory, state = self.encoder["rnn"](self.encoder["embedding"](source))
        logits, looked = [], []
        for word in self.decoder["embedding"](target).unbind(1):
            weights = self.decoder["attention"](state[-1], memory)
            context = weights[:, None] @ memory
            x = torch.cat([context, word[:, None]], dim=-1)
            made, state = self.decoder["rnn"](x, state)
            logits.append(self.decoder["dense"](made[:, 0]))
            looked.append(weights)
        return torch.stack(logits, 1), torch.stack(looked, 1)


class Layered(nn.Module):
    """A plain RNN that attends to the states of another network, scored by two tanh layers."""

    def __init__(self) -> None:
        super().__init__()
        self.init = nn.Linear(FEATURES, HIDDEN)
        self.embed = nn.Embedding(TARGET, WORDS)
        self.align = nn.ModuleDict(
            {
                "W": nn.Linear(HIDDEN, ATT),
                "U": nn.Linear(FEATURES, ATT, bias=False),
                "layers": nn.ModuleList([nn.ModuleDict({"hidden": nn.Linear(ATT, ATT)})]),
                "v": nn.Linear(ATT, 1, bias=False),
            }
        )
        self.input = nn.Linear(WORDS + FEATURES, HIDDEN)
        self.recurrent = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.output = nn.Linear(HIDDEN + FEATURES, TARGET)

    def forward(self, states: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and weights for each word of the target; [1, n]."""
        h = torch.tanh(self.init(states[:, -1]))
        logits, looked = [], []
        for word in self.embed(target).unbind(1):
            deep = torch.tanh(self.align["W"](h)[:, None] + self.align["U"](states))
            for layer in self.align["layers"]:
                deep = torch.tanh(layer["hidden"](deep))
            weights = self.align["v"](deep)[..., 0].softmax(-1)
            context = (weights[:, None] @ states)[:, 0]
            x = self.input(torch.cat([word, context], dim=-1))
            h = torch.tanh(x + self.recurrent(h))
            logits.append(self.output(torch.cat([h, context], dim=-1)))
            looked.append(weights)
        return torch.stack(logits, 1), torch.stack(looked, 1)


def drawn(module: nn.Module) -> nn.Module:
    """Set random values in all weights and biases."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_(std=0.5)
    return module.eval()


def by_rows(
    module: nn.Module, given: Mapping[str, Tensor], read: str, keep: str
) -> dict[str, Tensor]:
    """Compare each sequence without its padding; padding of the result is zero."""
    rows = []
    for row, kept in zip(given[read], given[keep].bool(), strict=True):
        at = len(rows)
        logits, looked = module(row[kept][None], given["target"][at : at + 1])
        wide = torch.zeros(*looked.shape[:2], len(kept), dtype=looked.dtype)
        wide[:, :, kept] = looked
        rows.append((logits, wide))
    logits, looked = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return {"logits": logits, "alignment": looked}


def test_textbook_decoder(tmp_path: Path) -> None:
    module = drawn(Textbook())
    sizes = {"embed_dim": WORDS, "hidden": HIDDEN, "layers": LAYERS}
    ours = build_weighted_spec(
        "textbook_decoder",
        list_module_weights(module),
        tmp_path,
        src_vocab=SOURCE,
        vocab=TARGET,
        **sizes,
    )
    given = make_samples(
        {
            "source": TokenIds("src", SOURCE),
            "source_keep": PaddingMask("src"),
            "target": TokenIds("tgt", TARGET),
        },
        {"src": (6, 1, 3), "tgt": (4, 4, 4)},
    )
    exact = module.double()
    assert_matches_published(
        ours,
        given,
        lambda i: by_rows(exact, i, "source", "source_keep"),
        {"logits": "tgt", "alignment": "tgt"},
    )


def test_rnn_with_mlp_scores(tmp_path: Path) -> None:
    module = drawn(Layered())
    sizes = {"embed_dim": WORDS, "hidden": HIDDEN, "attention_dim": ATT, "layers": 2}
    ours = build_weighted_spec(
        "rnn_attention",
        list_module_weights(module),
        tmp_path,
        vocab=TARGET,
        features=FEATURES,
        **sizes,
    )
    given = make_samples(
        {
            "states": Signal("src", FEATURES),
            "states_keep": PaddingMask("src"),
            "target": TokenIds("tgt", TARGET),
        },
        {"src": (6, 1, 3), "tgt": (4, 4, 4)},
    )
    exact = module.double()
    assert_matches_published(
        ours,
        given,
        lambda i: by_rows(exact, i, "states", "states_keep"),
        {"logits": "tgt", "alignment": "tgt"},
    )
