"""Small random specs that write, as text: with a start or not, a source or not, padding, windows, loops and biases."""

import random

HEAD = """
specc 1
model m
dims batch, src >= 1, seq
bias ban = {bias} * float(i - j + 1)
graph g(ids: int[batch, seq]{inputs}) -> (logits: float[batch, seq, {vocab}]) {{
  x = embedding({ids}, size={vocab}, dim=8) @ table
{body}
  return 6.0 * linear(x, out={vocab}) @ head
}}
generate text of ids from logits {{ {said} }}
"""


def random_writer(seed: int) -> str:
    """A spec of 5 to 8 tokens, whose ids -1 are padding where it says what is kept."""
    rng = random.Random(seed)
    keep, memory = rng.random() < 0.6, rng.random() < 0.5
    inputs = ", keep: keep[batch, seq] = ids >= 0" if keep else ""
    inputs += ", memory: float[batch, src, 8]" if memory else ""
    seen = "causal & visible(keep)" if keep else "causal"
    kinds = (
        ["attention", "biased", "window", "feed"] + (["cross"] if memory else []) + ([] if keep else ["sum", "delay"])
    )
    one = "insert(x, axis=1)"
    lines = {
        "attention": f"attention(x, heads=1, mask={seen}) @ own{{n}}",
        "window": f"attention(x, heads=1, mask={seen} & window(3)) @ near{{n}}",
        "biased": f"squeeze(attend({one}, {one}, {one}, mask={seen}, add=ban), axis=1)",
        "feed": "tanh(linear(x, out=8) @ feed{n})",
        "cross": "attention(x, memory, heads=1, mask=all) @ cross{n}",
        "sum": "tanh(cumsum(x))",
        "delay": "delay(x, by=1)",
    }
    body = [f"  x = x + ({lines[rng.choice(kinds)].format(n=n)})" for n in range(rng.randint(1, 3))]
    vocab = rng.randint(5, 8)
    said = "start = 1  stop = 0" if memory and rng.random() < 0.6 else "stop = 0"
    bias = rng.choice(["-1e30", "-1e9", "-0.5", "0.3"])
    ids = "max(ids, 0)" if keep else "ids"
    return HEAD.format(bias=bias, inputs=inputs, vocab=vocab, ids=ids, body="\n".join(body), said=said)
