"""Layers over padded sequences, in the forms that users write, each as statements of a spec.

A form reads a stream [batch, length, 4] and adds another. `{x}` is the stream, `{keep}` its padding
mask, `{weight}` the mask as floats [batch, length, 1], `{hidden}` as booleans of that shape, `{p}`
a unique name. A form of several statements returns its last value. `SUMMARIES` return [batch, 4].
"""

LAYERS = """
{x} * (sigmoid(linear({x}, out=4) @ g{p}))
silu(linear({x}, out=4, bias=false) @ g{p}) * {x}
linear(concat([{x}, tanh({x})], axis=2), out=4) @ g{p}
{x} * 0.3 + delay({x}, by=1) * 0.7
dropout({x}, 0.1) + {x}
l2_normalize({x})
softmax({x}, axis=2) * {x}
log_softmax({x}, axis=2)
{x} - insert(max({x}, axis=2), axis=2)
clip({x}, low=-1.0, high=1.0)
one_hot(argmax({x}, axis=2), size=4)
sort({x}, axis=2)
flip({x}, axis=2)
{x}[:, :, 1:] ; pad({p}1, after=1, axis=2)
concat([{x}[:, :, 2:], {x}[:, :, :2]], axis=2)
roll({x}, 1, axis=2)
cumsum({x}, axis=2)
split({x}, into=[2, 2], axis=2) ; merge(transpose({p}1, order=[0, 1, 3, 2]), axis=2)
resize({x}, mode=nearest, size=[8], axis=2) ; max_pool({p}1, kernel=1) ; {p}2[:, :, ::2]
insert(argmax({x}, axis=2), axis=2) ; {x} + float({p}1)
topk({x}, 2, axis=2) ; concat([{p}1, float({p}1a)], axis=2)
{x} / (1e-6 + sqrt(insert(sum({x} * {x}, axis=2), axis=2)))
mlp({x}, hidden=8, act=gelu) @ m{p}
where({x} > 0.1, {x}, 0.0)
where({hidden} & ({x} > 0.1), {x}, 1.0)
{x} * float({x} > 0.0)
batch_norm(where({hidden}, {x}, 0.0), eps=1e-5, axis=2) @ b{p}
{x} - (1.0 - {weight}) * 1e9
{x} * {weight} + (1.0 - {weight}) * -1e30
conv({x} * {weight}, out=4, kernel=3, padding=same, groups=2) @ c{p}
conv({x} * {weight}, out=4, kernel=2, padding=[2, 0], dilation=2, bias=false) @ c{p}
{x} + (sinusoid(position_ids({keep}), dim=4, layout=halves))
{x} + (sinusoid(positions({x}), dim=4, layout=halves))
"""
"""Layers that act on each position or on adjacent positions."""

MIXERS = """
masked_mean_pool({x}, {keep}) ; {x} - insert({p}1, axis=1)
masked_instance_norm({x}, {keep}, eps=1e-5) @ n{p}
mean({x}, axis=1) ; {x} - insert({p}1, axis=1)
sum({x} * {x} * {weight}, axis=1) ; {x} / sqrt(insert({p}1, axis=1) + 1e-6)
max(where({hidden}, {x}, -inf), axis=1) ; exp({x} - insert({p}1, axis=1)) * {weight} ; {p}2 / insert(sum({p}2, axis=1), axis=1)
sum({weight}, axis=1) ; {x} / insert({p}1, axis=1)
sum({weight}, axis=1) ; {x} * insert(log({p}1), axis=1)
{x} / float(length({x}, axis=1))
softplus({x}) * {weight} ; einsum("b n d, b n e -> b d e", {p}1, {x}) ; einsum("b n d, b d e -> b n e", {p}1, {p}2)
softplus({x}) ; einsum("b n d, b n e -> b d e", {p}1, {x} * {weight}) ; einsum("b n d, b d e -> b n e", {p}1, {p}2)
softplus({x}) ; einsum("b n d, b n e -> b d e", {p}1, {x}) ; einsum("b n d, b d e -> b n e", {p}1, {p}2)
softplus({x}) * {weight} ; cumsum(einsum("b n d, b n e -> b n d e", {p}1, {x} * {weight}), axis=1) ; einsum("b n d, b n d e -> b n e", {p}1, {p}2)
matmul({x}, transpose({x})) * 0.5 ; softmax(where(insert({keep}, axis=1), {p}1, -1e30)) ; matmul({p}2, {x})
matmul({x}, transpose({x})) ; softmax({p}1 + where(insert({keep}, axis=1), 0.0, -inf)) ; matmul({p}2, {x} * {weight})
matmul({x}, transpose({x})) ; softmax({p}1 + (1.0 - insert(float({keep}), axis=1)) * -1e9) ; matmul({p}2, {x})
matmul({x}, transpose({x})) ; softmax({p}1) ; matmul({p}2, {x})
matmul({x}, transpose({x})) ; masked_softmax({p}1, insert({keep}, axis=1)) ; matmul({p}2, {x})
matmul({x}, transpose({x})) ; where(insert({keep}, axis=1), {p}1, -inf) ; {x} + insert(max({p}2, axis=2), axis=2)
matmul({x}, transpose({x})) * transpose({weight}) ; matmul(tanh({p}1), {x})
where(insert({keep}, axis=1) & {hidden}, matmul({x}, transpose({x})), 0.0) ; matmul(tanh({p}1), {x} * {weight})
relu(matmul({x}, transpose({x}))) * transpose({weight}) ; {p}1 / (insert(sum({p}1), axis=2) + 1e-6) ; matmul({p}2, {x} * {weight})
lstm({x}, hidden=4, keep={keep}) @ l{p}
gru({x}, hidden=4, reset=after, direction=both, keep={keep}) @ l{p} ; linear({p}1, out=4) @ o{p}
lstm({x}, hidden=4) @ l{p}
gru({x} * {weight}, hidden=4, reset=after, bias=false) @ l{p}
flip({x}, axis=1) ; cumsum({p}1, axis=1) ; flip({p}2, axis=1)
flip({x} * {weight}, axis=1) ; cumsum({p}1, axis=1) ; flip({p}2, axis=1)
{x} + insert(sum(flip({x} * {weight}, axis=1), axis=1), axis=1)
attention({x}, heads=2, mask=visible({keep}) & query_mask({keep})) @ a{p}
attention({x}, heads=2, kv_heads=1, mask=causal & window(3) & visible({keep})) @ a{p}
attend({x}, {x}, {x}, mask=visible({keep}), add=grid(gaussian, {x}, {x}) @ s{p})
expand(parameter(shape=[1, 2, 4]) @ q{p}, axis=0, length=batch) ; attend({p}1, {x}, {x}, mask=visible({keep})) ; {x} + insert(mean({p}2, axis=1), axis=1)
expand(parameter(shape=[1, 2, 4]) @ q{p}, axis=0, length=batch) ; attend({p}1, {x}, {x}, mask=visible({keep})) ; attend({x}, {p}2, {p}2, mask=all)
attend_by(additive(size=3), {x}, {x}, {x}, mask=visible({keep})) @ a{p}
attend_by(triangle(radius=3.0), {x}, {x}, {x}, mask=visible({keep}), normalize=kernel) @ a{p}
attend_by(scaled_dot, {x}, {x}, {x}, mask=visible({keep}), normalize=topk(2)) @ a{p}
attend_by(scaled_dot, {x}, {x}, {x}, mask=visible({keep}), normalize=hard) @ a{p}
attend_by(scaled_dot, {x}, {x}, {x}, mask=causal, normalize=uniform) @ a{p}
gru({x} * {weight}, hidden=2, reset=before, direction=both, bias=false) @ l{p}
lstm({x} * {weight}, hidden=4, bias=false) @ l{p}
rnn({x} * {weight}, hidden=4, act=sigmoid, bias=false) @ l{p}
roll({x} * {weight}, 1, axis=1) ; {p}1 - roll({x}, 1, axis=1) * roll({weight}, 1, axis=1) ; {x} + insert(sum({p}2, axis=1), axis=1)
where(any(where({hidden}, {x} > 0.5, false), axis=1), 1.0, 0.0) ; {x} * insert({p}1, axis=1)
"""
"""Layers that read other positions."""

SUMMARIES = """
softmax(where({keep}, sum({x}), -inf), axis=1) ; sum({x} * insert({p}1, axis=2), axis=1)
softmax(where({keep}, sum({x}), -1e30), axis=1) ; einsum("b n, b n d -> b d", {p}1, {x} * {weight})
softmax(where({keep}, sum({x}), -1e4), axis=1) ; einsum("b n, b n d -> b d", {p}1, {x} * {weight})
softmax(where({keep}, 20.0 * tanh(sum({x})), -1e4), axis=1) ; sum({x} * insert({p}1, axis=2) * {weight}, axis=1)
softmax(sum({x}), axis=1) ; sum({x} * insert({p}1, axis=2), axis=1)
masked_softmax(sum({x}), {keep}) ; sum({x} * insert({p}1, axis=2), axis=1)
min(where({hidden}, {x}, inf), axis=1)
min(where({hidden}, {x}, 1e30), axis=1)
sort(where({hidden}, {x}, 1e30), axis=1) ; {p}1[:, 0]
sort(where({hidden}, {x}, 1e4), axis=1) ; {p}1[:, 0]
max({x} * {weight}, axis=1)
max(relu({x}) * {weight}, axis=1)
max(where({hidden}, {x}, -1e4), axis=1)
float(any(where({hidden}, {x}, 0.0) > 0.1, axis=1))
float(any({x} > 0.1, axis=1))
float(every(where({hidden}, {x} > -3.0, true), axis=1))
float(argmax(where({hidden}, {x}, -inf), axis=1))
float(argmax({x}, axis=1))
argmax(where({keep}, sum({x}), -inf), axis=1) ; gather({x}, {p}1, axis=1)
argmax(where({keep}, relu(sum({x})), -1.0), axis=1) ; gather({x}, {p}1, axis=1)
topk(where({hidden}, {x}, -inf), 2, axis=1) ; where({p}1 > -inf, {p}1, 0.0) ; sum({p}2, axis=1)
topk(where({hidden}, {x}, -inf), 2, axis=1) ; max({p}1, axis=1)
topk({x}, 2, axis=1) ; sum({p}1, axis=1)
sort(where({hidden}, {x}, inf), axis=1) ; {p}1[:, 0]
sort(where({hidden}, {x}, -inf), axis=1, descending=true) ; {p}1[:, 0]
logsumexp(where({hidden}, {x}, -inf), axis=1)
log(sum(exp({x}) * {weight}, axis=1))
sum({x} * {weight}, axis=1) / sum({weight}, axis=1)
sum({x} * {weight}, axis=1) / sqrt(sum({weight}, axis=1))
sum({x}, axis=1) / sum({weight}, axis=1)
sum({x} * {weight}, axis=1) / float(length({x}, axis=1))
mean({x} * {weight}, axis=1)
linear(statistics_pooling({x}, {keep}), out=4) @ s{p}
masked_mean_pool({x} * {x}, {keep}) ; masked_mean_pool({x}, {keep}) ; {p}1 - {p}2 * {p}2
sum(flip({x}, axis=1) * {weight}, axis=1)
sum(flip({x} * {weight}, axis=1), axis=1)
max(pad(where({hidden}, {x}, -inf), before=1, value=-1.0), axis=1)
sum(pad({x} * {weight}, after=2), axis=1)
sum(pad({x} * {weight}, after=2, axis=2), axis=1)[:, 1:5]
sum(resize({x} * {weight}, mode=nearest, factor=2, axis=1)[:, :, :4], axis=1)
sum(tanh(resize({x} * {weight}, mode=bilinear, factor=2, axis=1)[:, :, :4]), axis=1)
sum(roll({x} * {weight}, 1, axis=1), axis=1)
sum(roll({x}, 1, axis=1) * {weight}, axis=1)
max(roll(where({hidden}, {x}, -inf), -1, axis=1), axis=1)
rnn({x} * {weight}, hidden=4, act=relu, bias=false) @ l{p} ; {p}1a[:, 0]
lstm({x}, hidden=4, keep={keep}) @ l{p} ; {p}1a[:, 0]
gru({x}, hidden=4, reset=before, keep={keep}) @ l{p} ; last_token({p}1, {keep})
gru({x}, hidden=4, reset=before) @ l{p} ; {p}1[:, -1]
parameter(shape=[1, 1, 4]) @ q{p} ; attend(expand({p}1, axis=0, length=batch), {x}, {x}, mask=visible({keep})) ; {p}2[:, 0]
parameter(shape=[1, 1, 4]) @ q{p} ; attend(expand({p}1, axis=0, length=batch), {x}, {x}, mask=all) ; {p}2[:, 0]
prepend({x}, parameter(shape=[1, 1, 4]) @ q{p}) ; concat([ones(shape=[batch, 1]) > 0.0, {keep}], axis=1) ; attention({p}1, heads=2, mask=visible({p}2)) @ a{p} ; {p}3[:, 0]
prepend({x}, parameter(shape=[1, 1, 4]) @ q{p}) ; attention({p}1, heads=2, mask=all) @ a{p} ; {p}2[:, 0]
einsum("b n d, b n -> b d", {x}, float({keep}))
einsum("b n d -> b d", where({hidden}, {x}, 0.0))
matmul(transpose({weight}), {x}) ; {p}1[:, 0]
sum(where({hidden}, {x}, 0.0) ** 2.0, axis=1) ; sqrt({p}1)
sum(exp(where({hidden}, {x}, 0.0)) * {weight}, axis=1)
sum(exp(where({hidden}, {x}, 0.0)), axis=1)
{x}[:, 0] + {x}[:, -1]
"""
"""Pooling over all positions."""


def read_forms(text: str) -> list[list[str]]:
    """Return forms, each as its expressions in order."""
    return [[e.strip() for e in line.split(" ; ")] for line in text.strip().splitlines()]
