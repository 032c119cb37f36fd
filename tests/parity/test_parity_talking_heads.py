"""Differential Transformer and Talking-Heads attention agree with their equations in
PyTorch, for one sequence and for a padded batch.
"""

from pathlib import Path

import pytest
import torch
from support.padded_batches import PaddingMask, TokenIds, make_samples
from support.published_models import (
    assert_matches_published,
    build_weighted_spec,
    list_module_weights,
)
from torch import Tensor, nn

pytestmark = pytest.mark.parity

VOCAB, WIDTH, HEADS = 12, 8, 4

SPEC = """specc 1
model m
dims batch, n

graph lm(ids: int[batch, n], keep: keep[batch, n]) -> (logits: float[batch, n, 12]) {{
  x = embedding(ids, size=12, dim=8) @ e
  q, k = chunk(linear(x, out=16, bias=false) @ qk, 2)
  q = rearrange(q, "b n (h d) -> b h n d", sizes=[4])
  k = rearrange(k, "b n (h d) -> b h n d", sizes=[4])
  _, w = attend(q, k, k, mask=causal & visible(keep))
  {mix}
  v = rearrange(linear(x, out=8, bias=false) @ v, "b n (h d) -> b h n d", sizes=[2])
  return linear(rearrange(weigh(w, v), "b h n d -> b n (h d)"), out=12) @ head
}}

generate text of ids from logits {{ stop = 0 }}
"""
MIXED = {
    "differential": """w = split(w, into=[2, 2], axis=1)
  w = w[:, :, 0] - sigmoid(parameter(shape=[]) @ lam) * w[:, :, 1]""",
    "talking": 'w = einsum("b h i j, h g -> b g i j", w, parameter(shape=[4, 2]) @ mix)',
    "convolved": "w = conv(w, out=2, kernel=1, bias=false) @ talk",
}


class Mixing(nn.Module):
    """One layer whose weights are mixed over heads (arXiv:2410.05258, eq. 1;
    arXiv:2003.02436, sec. 3).
    """

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.e = nn.Embedding(VOCAB, WIDTH)
        self.qk = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.v = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCAB)
        if how == "differential":
            self.lam = nn.Parameter(torch.tensor(0.3))
        elif how == "talking":
            self.mix = nn.Parameter(torch.empty(HEADS, 2))
        else:
            self.talk = nn.Conv2d(HEADS, 2, 1, bias=False)

    def forward(self, ids: Tensor, keep: Tensor) -> dict[str, Tensor]:
        """Return logits [batch, n, vocab]."""
        x = self.e(ids)
        q, k = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.qk(x).chunk(2, dim=-1))
        n = ids.shape[1]
        seen = torch.ones(n, n, dtype=torch.bool).tril() & keep[:, None, None, :].bool()
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        w = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
        if self.how == "differential":
            w = w[:, 0::2] - torch.sigmoid(self.lam) * w[:, 1::2]
        elif self.how == "talking":
            w = torch.einsum("bhij,hg->bgij", w, self.mix)
        else:
            w = self.talk(w)
        v = self.v(x).unflatten(-1, (2, -1)).transpose(1, 2)
        return {"logits": self.head((w @ v).transpose(1, 2).flatten(2))}


@pytest.mark.parametrize("how", MIXED)
def test_weights_mixed_over_heads(how: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Mixing(how)
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_(std=0.5)
    path = tmp_path / "m.specc"
    path.write_text(SPEC.format(mix=MIXED[how]), encoding="utf-8")
    ours = build_weighted_spec(str(path), list_module_weights(module), tmp_path)
    given = make_samples({"ids": TokenIds("n", VOCAB), "keep": PaddingMask("n")}, {"n": (6, 1, 3)})
    exact = module.double().eval()
    assert_matches_published(ours, given, lambda i: exact(i["ids"], i["keep"]), {"logits": "n"})
