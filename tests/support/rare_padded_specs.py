"""Layers over padded sequences with ops that `padded_layer_forms` rarely combines, and random specs
of them.

Forms are those of `padded_layer_forms`. A form of `LENGTH_CHANGES` returns a stream and its mask.
In `LOOPS`, `{h}` is carried, `{out}` is the result and `{length}` the number of positions.
"""

import random

from support.padded_layer_forms import read_forms
from support.random_padded_specs import HEADER, SIDES, PaddedSpec, SpecWriter, Stream, write_form

DEFINITIONS = """
normalizer shifted(s) = softmax(s - mean(s, axis=-1)[..., none], axis=-1)
normalizer relu_share(s) = relu(s) / (sum(relu(s), axis=-1)[..., none] + 1e-6)
normalizer plus_one(s) = exp(s) / (1.0 + sum(exp(s), axis=-1)[..., none])
normalizer power(s) = softmax(s, axis=-1) ** 2.0
bias near(by: float) = -by * abs(float(i - j))
bias absolute = float(i) * 0.3
bias keyed = float(j) * 0.3
bias given(t) = t[i] * t[j]
bias table(at) = float(at[i] - at[j]) * 0.2
mask even = (i - j) % 2 == 0
mask even_key = j % 2 == 0
mask first_two = j < 2
mask prefix(p) = p[j] | j <= i
mask later = j >= i
mask not_self = i != j
mask blocks(c) = c[i] == c[j]
block expert(x: float[..., 4]) -> float[..., 4] {
  return linear(tanh(linear(x, out=8) @ up), out=4) @ down
}
block cell(x: float[b, 4], h: float[b, 4]) -> float[b, 4] {
  g = sigmoid(linear(concat([x, h], axis=1), out=4) @ g)
  return g * h + (1.0 - g) * x
}
"""
"""Definitions that the forms use."""

RARE_LAYERS = """
{x} + rotate({x}[:, none], positions({x}), rope(theta=100.0), pairs=half)[:, 0]
{x} + rotate({x}[:, none], positions({keep}), rope(theta=100.0), pairs=interleaved)[:, 0]
rotate({x}[:, none], positions({keep}), rope(theta=100.0), pairs=half) ; attend({p}1, {p}1, {x}[:, none], mask=visible({keep})) ; {p}2[:, 0]
rotate({x}[:, none], positions({x}), rope(theta=100.0), pairs=half) ; attend({p}1, {p}1, {x}[:, none], mask=causal & visible({keep})) ; {p}2[:, 0]
rotate({x}[:, none], positions({x}), rope(theta=100.0), pairs=half) ; attend({p}1, {p}1, {p}1, mask=visible({keep})) ; {p}2[:, 0]
rotate({x}[:, none], positions({x}), rope(theta=100.0), pairs=half) ; attend({p}1, {x}[:, none], {x}[:, none], mask=visible({keep})) ; {p}2[:, 0]
attend({x}, {x}, {x}, mask=visible({keep}), add=grid(near(0.3), {x}, {x})[:, 0])
attend({x}, {x}, {x}, mask=visible({keep}), add=grid(absolute, {x}, {x})[:, 0])
attend({x}, {x}, {x}, mask=visible({keep}), add=grid(keyed, {x}, {x})[:, 0])
attend({x}, {x}, {x}, mask=visible({keep}), add=grid(table(positions({keep})), {x}, {x})[:, 0])
attend({x}, {x}, {x}, mask=visible({keep}), add=grid(given(sum({x})), {x}, {x})[:, 0])
attend({x}, {x}, {x}, mask=even & visible({keep}))
attend({x}, {x}, {x}, mask=even_key & visible({keep}))
attend({x}, {x}, {x}, mask=first_two & visible({keep}))
attend({x}, {x}, {x}, mask=first_two | visible({keep}))
attend({x}, {x}, {x}, mask=later & visible({keep}))
attend({x}, {x}, {x}, mask=not_self & visible({keep}))
attend({x}, {x}, {x}, mask=later)
attend({x}, {x}, {x}, mask=chunked(3) & visible({keep}))
attend({x}, {x}, {x}, mask=window(2, ahead=1) & visible({keep}))
attend({x}, {x}, {x}, mask=window(2, ahead=1))
attend({x}, {x}, {x}, mask=prefix(sum({x}) > 0.0) & visible({keep}))
attend({x}, {x}, {x}, mask=prefix(sum({x}) > 0.0) & causal)
attend({x}, {x}, {x}, mask=blocks(cumsum(sum({x}) > 0.5)) & visible({keep}))
attend({x}, {x}, {x}, mask=blocks(cumsum((sum({x}) > 0.5) & {keep})) & visible({keep}))
attend({x}, {x}, {x}, mask=blocks(cumsum((sum({x}) > 0.5) & {keep})) & causal & visible({keep}))
attend({x}, {x}, {x}, mask=visible({keep} & (sum({x}) > 0.0)))
attend({x}, {x}, {x}, mask=visible({keep} | (sum({x}) > 0.0)))
attend({x}, {x}, {x}, mask=visible(not {keep}))
attend({x}, {x}, {x}, mask=local_window(sum({x}) * 0.1, 2.0) & visible({keep}))
attend({x}, {x}, {x}, mask=local_window(float(positions({x})) + sum({x}) * 0.1, 2.0) & visible({keep}))
attend({x}, {x}, {x}, mask=local_window(float(positions({keep})), 2.0) & visible({keep}))
attend({x}, {x}, {x}, mask=trailing_window(positions({x}), 3) & visible({keep}))
attend({x}, {x}, {x}, mask=trailing_window(argmax({x}), 3) & visible({keep}))
attend({x}[:, none], {x}[:, none], {x}[:, none], mask=visible({keep}), sinks=parameter(shape=[1]) @ s{p}) ; {p}1[:, 0]
attend({x}, {x}, {x}, mask=visible({keep}), cap=5.0)
attend({x}, {x}, {x}, mask=causal & visible({keep}), cap=2.0, scale=0.3)
attend_by(dot, {x}, {x}, {x}, mask=visible({keep}), normalize=shifted)
attend_by(dot, {x}, {x}, {x}, mask=visible({keep}), normalize=relu_share)
attend_by(dot, {x}, {x}, {x}, mask=visible({keep}), normalize=plus_one)
attend_by(dot, {x}, {x}, {x}, mask=visible({keep}), normalize=power)
attend_by(dot, {x}, {x}, {x}, mask=visible({keep}), normalize=queries)
attend_by(dot, {x}, {x}, {x}, mask=visible({keep}) & query_mask({keep}), normalize=queries)
attend_by(cosine, {x}, {x}, {x}, mask=visible({keep}), normalize=entmax15)
attend_by(gaussian, {x}, {x}, {x}, mask=visible({keep}), normalize=kernel)
attend_by(dot, {x}, {x}, {x}, mask=causal & visible({keep}), normalize=topk(3))
grid(dot, {x}, {x}) ; weights_by(sparsemax, {p}1, mask=visible({keep})) ; weigh({p}2, {x})
grid(dot, {x}, {x}) ; weights_by(softmax, {p}1, mask=causal) ; weigh({p}2 * {p}2, {x})
grid(dot, {x}, {x}) ; weights_by(softmax, {p}1, mask=visible({keep})) ; weigh(roll({p}2, 1, axis=2), {x})
grid(dot, {x}, {x}) ; weights_by(softmax, {p}1, mask=visible({keep})) ; weigh(transpose({p}2), {x})
grid(dot, {x}, {x}) ; weights_by(softmax, {p}1, mask=visible({keep}) & query_mask({keep})) ; weigh(transpose({p}2), {x} * {weight})
grid(dot, {x}, {x}) ; masked_softmax({p}1, {keep}[:, none]) ; matmul({p}2, {p}2) ; matmul({p}3, {x})
grid(dot, {x}, {x}) ; where({keep}[:, none] & {keep}[:, :, none], {p}1, -inf) ; softmax({p}2, axis=1) ; matmul(transpose({p}3), {x} * {weight})
grid(dot, {x}, {x}) ; where({keep}[:, none] & {keep}[:, :, none], {p}1, -1e30) ; softmax({p}2, axis=1) ; matmul(transpose({p}3), {x} * {weight})
grid(dot, {x}, {x}) ; where({keep}[:, none], {p}1, 0.0) ; cumsum({p}2, axis=2) ; matmul(tanh({p}3) * transpose({weight}), {x})
grid(dot, {x}, {x}) ; where({keep}[:, none], {p}1, -inf) ; argmax({p}2, axis=2) ; gather({x}, {p}3, axis=1)
grid(dot, {x}, {x}) ; where({keep}[:, none], {p}1, -inf) ; topk({p}2, 2, axis=2) ; where({p}3 > -inf, {p}3, 0.0) ; {x} + sum({p}4)[..., none]
grid(dot, {x}, {x}) ; where({keep}[:, none], {p}1, -inf) ; topk({p}2, 2, axis=2) ; merge({p}3a, axis=1) ; gather({x}, {p}4, axis=1) ; split({p}5, into=[length({x}, axis=1), 2], axis=1) ; sum({p}6, axis=2)
stack([{x}, tanh({x})], axis=2) ; max({p}1, axis=2)
stack([{x}, {x} * {weight}], axis=1) ; sum({p}1, axis=1)
chunk({x}, 2) ; concat([{p}1a, {p}1], axis=2)
parts({x}, into=[1, 3]) ; concat([{p}1a, {p}1 * {p}1], axis=2)
group_norm({x}, groups=2, eps=1e-5, axis=2) @ gn{p}
group_norm(where({hidden}, {x}, 0.0), groups=2, eps=1e-5, axis=2) @ gn{p}
masked_instance_norm({x}, {keep}, eps=1e-5) @ in{p}
masked_group_norm({x}, {keep}, eps=1e-5) @ mg{p}
transpose(rms_norm(transpose({x} * {weight}), eps=1e-5, scale=false))
transpose(layer_norm(transpose({x} * {weight}), eps=1e-5, scale=false, bias=false))
transpose(l2_normalize(transpose({x} * {weight})))
transpose(l2_normalize(transpose(where({hidden}, {x}, 0.0)), eps=0.0))
{x} / sqrt(sum({x} * {x} * {weight}, axis=1)[:, none] + 1e-6)
{x} - (sum({x} * {weight}, axis=1) / max(sum({weight}, axis=1), 1.0))[:, none]
{x} * (sum({weight}, axis=1) / float(length({x}, axis=1)))[:, none]
{x} * sqrt(float(sum(cast({keep}, to=int), axis=1)))[:, none, none]
argsort(where({keep}, sum({x}), inf), axis=1) ; gather({x}, {p}1, axis=1) ; {x} + cumsum({p}2, axis=1)[:, 0][:, none]
argsort(where({keep}, sum({x}), inf), axis=1) ; gather({x}, {p}1, axis=1) ; argsort({p}1, axis=1) ; gather({p}2, {p}3, axis=1)
argsort(where({keep}, sum({x}), inf), axis=1) ; gather({x}, {p}1, axis=1) ; tanh(cumsum({p}2, axis=1)) ; argsort({p}1, axis=1) ; gather({p}3, {p}4, axis=1)
argsort(where({keep}, sum({x}), -inf), axis=1) ; gather({x}, {p}1, axis=1) ; tanh(cumsum({p}2, axis=1)) ; argsort({p}1, axis=1) ; gather({p}3, {p}4, axis=1)
argsort(where({hidden}, {x}, inf), axis=1) ; argsort({p}1, axis=1) ; {x} + float({p}2)
argsort(where({hidden}, {x}, -inf), axis=1) ; argsort({p}1, axis=1) ; {x} + float({p}2)
topk(softmax(linear({x}, out=3) @ r{p}), 2, axis=2) ; route({x}, {p}1a, {p}1, to=expert, experts=3) @ e{p}
topk(softmax(linear({x}, out=3) @ r{p}), 2, axis=2) ; route({x}, {p}1a, {p}1, to=expert, experts=3, keep={keep}) @ e{p}
topk(softmax(linear({x}, out=3) @ r{p}), 1, axis=2) ; cumsum(one_hot({p}1a[:, :, 0], size=3), axis=1) ; {x} * float(sum({p}2 * one_hot({p}1a[:, :, 0], size=3)) <= 2.0)[..., none]
topk(softmax(linear({x}, out=3) @ r{p}), 1, axis=2) ; cumsum(one_hot({p}1a[:, :, 0], size=3) * {weight}, axis=1) ; {x} * float(sum({p}2 * one_hot({p}1a[:, :, 0], size=3)) <= 2.0)[..., none]
conv({x}[:, none], out=1, kernel=[2, 3], padding=[[1, 0], [1, 1]]) @ c{p} ; {p}1[:, 0]
conv(({x} * {weight})[:, none], out=1, kernel=[3, 3], padding=[[1, 1], [1, 1]]) @ c{p} ; {p}1[:, 0]
conv(where({hidden}, {x}, 0.0)[:, none], out=2, kernel=[3, 1], padding=[[1, 1], [0, 0]]) @ c{p} ; {p}1[:, 0] + {p}1[:, 1]
max_pool({x}[:, none], kernel=[3, 1], stride=1, padding=[1, 0]) ; {p}1[:, 0]
max_pool(where({hidden}, {x}, -inf)[:, none], kernel=[3, 1], stride=1, padding=[1, 0]) ; where({hidden}, {p}1[:, 0], 0.0)
max_pool(where({hidden}, {x}, -1e30), kernel=3, stride=1, padding=1)
average_pool({x} * {weight}, kernel=3, stride=1, padding=1, count_include_pad=false)
average_pool({x} * {weight}, kernel=3, stride=1, padding=1, count_include_pad=true)
conv(pad({x}, before=1, after=1, mode=reflect), out=4, kernel=3) @ c{p}
conv(pad({x} * {weight}, before=1, after=1, mode=edge), out=4, kernel=3) @ c{p}
conv(pad({x} * {weight}, before=1, after=1), out=4, kernel=3) @ c{p}
conv(pad({x} * {weight}, before=2), out=4, kernel=3, groups=4, bias=false) @ c{p}
conv({x} * {weight}, out=4, kernel=5, padding=same, groups=4) @ c{p}
conv_transpose({x} * {weight}, out=4, kernel=3, padding=1) @ c{p}
conv_transpose({x}, out=4, kernel=2, bias=false) @ c{p} ; {p}1[:, :-1]
conv_transpose({x} * {weight}, out=4, kernel=2) @ c{p} ; {p}1[:, :-1]
conv_transpose({x} * {weight}, out=4, kernel=2) @ c{p} ; {p}1[:, 1:]
conv_transpose({x} * {weight}, out=4, kernel=2, stride=2) @ c{p} ; {p}1[:, ::2] + {p}1[:, 1::2]
conv_transpose({x}, out=4, kernel=4, stride=2, padding=1) @ c{p} ; max_pool({p}1, kernel=2)
resize({x}, mode=nearest, size=[2 * length({x}, axis=1)], axis=1) ; average_pool({p}1, kernel=2)
resize({x} * {weight}, mode=bilinear, size=[2 * length({x}, axis=1)], axis=1) ; max_pool({p}1, kernel=2)
resize({x}, mode=bilinear, size=[2 * length({x}, axis=1)], axis=1, align_corners=true) ; {p}1[:, ::2]
resize({x}, mode=nearest, size=[2 * length({x}, axis=1)], axis=1) ; split({p}1, into=[length({x}, axis=1), 2], axis=1) ; sum({p}2 * tanh({p}2), axis=2)
resize({x}, mode=nearest, size=[2 * length({x}, axis=1)], axis=1) ; conv({p}1, out=4, kernel=2, stride=2) @ c{p}
concat([zeros(shape=[batch, 1, 4]), {x}[:, :-1]], axis=1)
concat([{x}[:, 1:], zeros(shape=[batch, 1, 4])], axis=1)
concat([{x}[:, :1], {x}[:, :-1]], axis=1)
concat([{x}[:, 1:], {x}[:, -1:]], axis=1)
concat([{x}[:, -1:], {x}[:, :-1]], axis=1)
concat([({x} * {weight})[:, 1:], zeros(shape=[batch, 1, 4])], axis=1)
concat([zeros(shape=[batch, 1, 4]), ({x} * {weight})[:, :-1]], axis=1)
concat([zeros(shape=[batch, 1, 4]), {x}[:, 1:] - {x}[:, :-1]], axis=1)
concat([zeros(shape=[batch, 1, 4]), ({x} * {weight})[:, 1:] - ({x} * {weight})[:, :-1]], axis=1)
delay({x} * {weight}, by=1) - delay({x} * {weight}, by=3)
{x} * delay({weight}, by=1) + delay({x}, by=1) * {weight}
where({hidden} & (delay({weight}, by=1) > 0.5), {x} - delay({x}, by=1), 0.0)
split({x}, into=[2, 2], axis=2) ; merge({p}1, axis=1) ; cumsum({p}2, axis=1) ; split({p}3, into=[length({x}, axis=1), 2], axis=1) ; merge({p}4, axis=2)
split({x} * {weight}, into=[2, 2], axis=2) ; merge({p}1, axis=1) ; conv({p}2, out=2, kernel=3, padding=same) @ c{p} ; split({p}3, into=[length({x}, axis=1), 2], axis=1) ; merge({p}4, axis=2)
split({x}, into=[2, 2], axis=2) ; merge({p}1, axis=1) ; merge(expand({keep}[:, :, none], axis=2, length=2), axis=1) ; attend({p}2, {p}2, {p}2, mask=visible({p}3)) ; split({p}4, into=[length({x}, axis=1), 2], axis=1) ; merge({p}5, axis=2)
split({x}, into=[2, 2], axis=2) ; merge({p}1, axis=1) ; {p}2 - max({p}2, axis=1)[:, none] ; split({p}3, into=[length({x}, axis=1), 2], axis=1) ; merge({p}4, axis=2)
split({x} * {weight}, into=[2, 2], axis=2) ; merge({p}1, axis=1) ; {p}2 - sum({p}2, axis=1)[:, none] ; split({p}3, into=[length({x}, axis=1), 2], axis=1) ; merge({p}4, axis=2)
split({x}, into=[2, 2], axis=2) ; merge(transpose({p}1, order=[0, 2, 1, 3]), axis=1) ; cumsum({p}2, axis=1) ; split({p}3, into=[2, length({x}, axis=1)], axis=1) ; merge(transpose({p}4, order=[0, 2, 1, 3]), axis=2)
split({x} * {weight}, into=[2, 2], axis=2) ; merge(transpose({p}1, order=[0, 2, 1, 3]), axis=1) ; tanh(cumsum({p}2, axis=1)) ; split({p}3, into=[2, length({x}, axis=1)], axis=1) ; merge(transpose({p}4, order=[0, 2, 1, 3]), axis=2)
split({x}, into=[2, 2], axis=2) ; merge(transpose({p}1, order=[2, 0, 1, 3]), axis=0) ; attend({p}2, {p}2, {p}2, mask=visible(concat([{keep}, {keep}], axis=0))) ; split({p}3, into=[2, batch], axis=0) ; merge(transpose({p}4, order=[1, 2, 0, 3]), axis=2)
split({x}, into=[2, 2], axis=2) ; merge(transpose({p}1, order=[0, 2, 1, 3]), axis=0) ; attend({p}2, {p}2, {p}2, mask=visible(merge(expand({keep}[:, none], axis=1, length=2), axis=0))) ; split({p}3, into=[batch, 2], axis=0) ; merge(transpose({p}4, order=[0, 2, 1, 3]), axis=2)
merge({x}, axis=0) ; layer_norm({p}1, eps=1e-5) @ ln{p} ; split({p}2, into=[batch, length({x}, axis=1)], axis=0)
merge({x} * {weight}, axis=0) ; {p}1 - sum({p}1, axis=0) ; split({p}2, into=[batch, length({x}, axis=1)], axis=0)
rearrange({x}, "b n (h d) -> b h n d", sizes=[2]) ; cumsum({p}1, axis=2) ; rearrange({p}2, "b h n d -> b n (h d)")
exp(cumsum(log(sigmoid({x})) * {weight}, axis=1)) * {x}
exp(cumsum(log(sigmoid({x})), axis=1)) * {x}
cumsum({x} * {weight}, axis=1) / cumsum({weight} + 1e-9, axis=1)
cumsum({x} * {weight}, axis=1) / max(cumsum({weight}, axis=1), 1.0)
cumsum({x} * {weight}, axis=1) / where(cumsum({weight}, axis=1) > 0.0, cumsum({weight}, axis=1), 1.0)
where({hidden}, cumsum({x} * {weight}, axis=1) / float(1 + positions({keep}))[..., none], 0.0)
cumsum({x} * {weight}, axis=1) / float(1 + positions({keep}))[..., none]
cumsum({x} * {weight}, axis=1) / float(1 + positions({x}))[:, none]
{x} * (0.9 ** float(positions({keep})))[..., none]
{x} * (0.9 ** float(sum(cast({keep}, to=int), axis=1)[:, none] - positions({keep})))[..., none]
where((positions({keep}) < 3)[..., none], {x}, 0.0)
where((positions({x}) < 3)[:, none], {x}, 0.0)
where((positions({x}) < sum(cast({keep}, to=int), axis=1)[:, none])[..., none], {x}, 0.0)
where((cumsum({keep}) > 2)[..., none], {x}, 0.5)
where((cumsum(sum({x}) > 0.0) > 2)[..., none], {x}, 0.5)
where((cumsum((sum({x}) > 0.0) & {keep}) > 2)[..., none], {x}, 0.5)
{x} + embedding(positions({keep}), size=64, dim=4) @ pe{p}
{x} + embedding(positions({x}), size=64, dim=4) @ pe{p}
{x} + embedding(cumsum({keep}), size=64, dim=4) @ pe{p}
{x} + embedding(argmax({x}), size=4, dim=4) @ pe{p}
{x} + gather({x}, argmax(cast({keep}, to=int), axis=1), axis=1)[:, none]
{x} + gather({x}, sum(cast({keep}, to=int), axis=1) - 1, axis=1)[:, none]
{x} + gather({x}, argmax(where({keep}, positions({keep}), -1), axis=1), axis=1)[:, none]
{x} + gather({x}, argmax(cumsum({keep}), axis=1), axis=1)[:, none]
{x} + gather({x}, argmax(where({keep}, sum({x}), -inf), axis=1), axis=1)[:, none]
{x} + gather({x}, clip(positions({keep}) - 1, low=0), axis=1)
{x} + gather({x}, clip(positions({x}) - 1, low=0)[none], axis=1)
{x} + gather({x}, clip(argmax({x}), low=0), axis=1)
{x} + gather({x}, flip(positions({x}), axis=0)[none], axis=1)
{x} + {x}[:, 0][:, none]
{x} + {x}[:, -1][:, none]
{x} + last_token({x}, {keep})[:, none]
{x} + cls_token({x})[:, none]
{x} + masked_max_pool({x}, {keep})[:, none]
{x} + max(where({hidden}, {x}, -inf), axis=1)[:, none]
{x} + min({x} * {weight}, axis=1)[:, none]
{x} + logsumexp(where({hidden}, {x}, -inf), axis=1)[:, none]
{x} + log_softmax(where({hidden}, {x}, -inf), axis=1)
{x} * softmax(where({hidden}, {x}, -inf), axis=1)
{x} * softmax({x} - 1e9 * (1.0 - {weight}), axis=1)
{x} * softmax({x} * {weight}, axis=1)
{x} * softmax({x} * {weight}, axis=1) / sum(softmax({x} * {weight}, axis=1) * {weight}, axis=1)[:, none]
einsum("b n d, b n e, b m e -> b m d", {x}, {x} * {weight}, {x})
einsum("b n d, b n e, b m e -> b m d", {x}, {x}, {x})
einsum("b n d, b m d, b m e -> b n e", {x}, {x}, {x} * {weight})
einsum("b n d, b m d, b m -> b n", {x}, {x}, float({keep})) ; {x} * tanh({p}1)[..., none]
{x} * float(any({x} > 0.5, axis=1))[:, none]
where(any(({x} > 0.5) & {hidden}, axis=1)[:, none], {x}, 0.0)
where(every(({x} > -3.0) | not {hidden}, axis=1)[:, none], {x}, 0.0)
{x} * float(any({keep}, axis=1))[:, none, none]
{x} * float(every({keep}, axis=1))[:, none, none]
sort(where({hidden}, {x}, inf), axis=1) ; where({hidden}, {p}1, 0.0)
sort(where({hidden}, {x}, -inf), axis=1, descending=true) ; {x} + {p}1[:, 0][:, none]
sort(where({hidden}, {x}, inf), axis=1) ; {x} + where({p}1[:, 2] < inf, {p}1[:, 2], 0.0)[:, none]
sort(where({hidden}, {x}, -inf), axis=1) ; {x} + {p}1[:, -1][:, none]
sort(where({hidden}, {x}, -inf), axis=1) ; {x} + where({p}1 > -inf, {p}1, 0.0)
topk(where({hidden}, {x}, -inf), 3, axis=1) ; {x} + {p}1[:, 1][:, none]
topk(where({hidden}, {x}, -inf), 2, axis=1) ; {x} + float({p}1a[:, 0])[:, none]
topk(where({hidden}, -{x}, -inf), 2, axis=1) ; where({p}1 > -inf, {p}1, 0.0) ; {x} + mean({p}2, axis=1)[:, none]
topk({x}, 2, axis=1) ; {x} + {p}1[:, 0][:, none]
{x} - float(argmax({x} * {weight}, axis=1))[:, none]
rnn({x} * {weight}, hidden=4, act=relu, bias=false, direction=both) @ l{p} ; linear({p}1, out=4) @ o{p}
lstm({x}, hidden=4, layers=2, keep={keep}) @ l{p}
lstm({x}, hidden=4, peepholes=true, keep={keep}) @ l{p}
gru({x}, hidden=4, reset=after, direction=backward, keep={keep}) @ l{p}
gru({x}, hidden=4, reset=after, direction=backward) @ l{p}
gru({x} * {weight}, hidden=4, reset=after, direction=backward, bias=false) @ l{p}
lstm({x}, hidden=4, keep={keep}, start={x}[:, 0][:, none]) @ l{p}
lstm({x}, hidden=4, keep={keep}, start=masked_mean_pool({x}, {keep})[:, none]) @ l{p}
lstm({x}, hidden=4, keep={keep} & (sum({x}) > 0.0)) @ l{p}
lstm({x}, hidden=4, keep={keep} | (sum({x}) > 0.0)) @ l{p}
grid_sample(transpose({x} * {weight})[:, :, none], stack([tanh({x}[:, :, 0]), 0.0 * {x}[:, :, 0]], axis=2), mode=bilinear) ; transpose({p}1)
clip({x} * 1e4, low=-10.0, high=10.0)
{x} + log(max(sum({x} * {x} * {weight}, axis=1), 1e-9))[:, none]
{x} / max(abs({x}), 1e-3)
{x} / (abs({x}) + {weight})
where({hidden}, {x} / ({weight} * abs({x}) + 1e-6), 0.0)
{x} ** 2.0 / (1e-3 + {x} ** 2.0)
round({x} * 2.0) * 0.5
floor({x}) + ceil({x} * {weight})
one_hot(clip(cast({x}[:, :, 0], to=int), low=0, high=3), size=4)
{x} * sign({x})
mish({x}) + hardswish({x})
where({x} == max({x}, axis=1)[:, none], 1.0, 0.0) + {x}
where({x} == max(where({hidden}, {x}, -inf), axis=1)[:, none], 1.0, 0.0) + {x}
dropout({x}, 0.1) * {weight}
sinusoid(positions({keep}), dim=4, layout=halves) * {x}
sinusoid(positions({keep}) - sum(cast({keep}, to=int), axis=1)[:, none], dim=4, layout=halves) + {x}
{x} + sinusoid(positions({x}), dim=4, layout=halves)
squeeze(average_pool({x}[:, none] * {weight}[:, none], kernel=[3, 1], stride=1, padding=[1, 0], count_include_pad=true), axis=1)
pad({x}, before=1, mode=edge) ; pad({weight}, before=1, mode=edge) ; {x} + max({p}1 * {p}2, axis=1)[:, none]
pad(where({hidden}, {x}, -inf), before=1, after=2, mode=edge) ; {x} + max({p}1, axis=1)[:, none]
pad({weight} * abs({x}), after=1, mode=edge) ; {x} + sum({p}1, axis=1)[:, none]
pad({keep}, before=1, value=true) ; softmax(where({p}1, pad(sum({x}), before=1), -inf), axis=1) ; {x} * {p}2[:, 1:][..., none]
softmax(pad(where({keep}, sum({x}), -1e30), before=1, after=1), axis=1) ; {x} * {p}1[:, 1:-1][..., none]
softmax(pad(where({keep}, sum({x}), -inf), before=1, value=-inf), axis=1) ; {x} * {p}1[:, 1:][..., none]
concat([{x}, tanh({x})], axis=1) ; concat([{keep}, {keep}], axis=1) ; topk(where({p}2[..., none], {p}1, -inf), 2, axis=1) ; where({p}3 > -inf, {p}3, 0.0) ; {x} + sum({p}4, axis=1)[:, none]
concat([{x}, tanh({x})], axis=1) ; concat([{keep}, {keep}], axis=1) ; topk(where({p}2[..., none], {p}1, -inf), 2, axis=1) ; {x} + float({p}3a)[:, 0][:, none]
max({weight} - 0.3, 0.0) ; {x} + sum({x} * {p}1, axis=1)[:, none]
relu({weight} - softplus({x})) ; {x} + sum({x} * {p}1, axis=1)[:, none]
max({weight} * 0.5 - {x}, 0.0) ; {x} + sum({x} * {p}1, axis=1)[:, none]
min({weight} + {x} * {x}, 0.0) ; {x} + sum({p}1, axis=1)[:, none]
max(abs({x}) * ({weight} - 1.0), 0.0) ; {x} + sum({x} * {p}1, axis=1)[:, none]
"""

LOOPS = """
{h} = zeros(shape=[batch, 4]) ; scan r{p} in {x} along {length} carry {h} collect {out} keep {keep} {{ ; a{p}, _ = attend_by(dot, {h}, {x}, {x}, mask=visible({keep})) ; {h} = tanh(r{p} + a{p}) ; {out} = {h} ; }}
{h} = zeros(shape=[batch, 4]) ; scan r{p} in {x} along {length} carry {h} collect {out} keep {keep} {{ ; {h} = tanh(r{p} + {h} + masked_mean_pool({x}, {keep})) ; {out} = {h} ; }}
{h} = zeros(shape=[batch, 4]) ; scan r{p} in {x} along {length} carry {h} collect {out} keep {keep} {{ ; {h} = tanh(r{p} + {h} + {x}[:, 0]) ; {out} = {h} ; }}
{h} = zeros(shape=[batch, 4]) ; c{p} = float({keep}) * 0.0 ; scan r{p} in {x} along {length} carry {h}, c{p} collect {out} keep {keep} {{ ; w{p} = softmax(where({keep}, einsum("b n d, b d -> b n", {x}, {h}) - c{p}, -inf), axis=1) ; c{p} = c{p} + w{p} ; {h} = tanh(r{p} + einsum("b n, b n d -> b d", w{p}, {x} * {weight})) ; {out} = {h} ; }}
{h} = zeros(shape=[batch, 4]) ; c{p} = float({keep}) * 0.0 ; scan r{p} in {x} along {length} carry {h}, c{p} collect {out} keep {keep} {{ ; c{p} = c{p} + 1.0 ; {h} = tanh(r{p} + {h} + sum(c{p}, axis=1)[:, none]) ; {out} = {h} ; }}
{h} = {x} ; scan r{p} in {x} along {length} carry {h} keep {keep} {{ ; {h} = tanh({h} + r{p}[:, none]) ; }} ; {out} = {h}
{h} = {x} ; scan r{p} in {x} along {length} carry {h} keep {keep} {{ ; {h} = tanh({h} * {weight} + masked_mean_pool({h}, {keep})[:, none]) ; }} ; {out} = {h}
{h} = zeros(shape=[batch, 4]) ; scan r{p} in {x} along {length} carry {h} collect {out} keep {keep} {{ ; {h} = tanh({h} + r{p}) ; {out} = {h} ; }}
{h} = zeros(shape=[batch, 4]) ; scan r{p}, k{p} in {x}, {keep} along {length} carry {h} collect {out} {{ ; {h} = where(k{p}[:, none], tanh({h} + r{p}), {h}) ; {out} = {h} ; }}
{h} = zeros(shape=[batch, 4]) ; scan r{p}, k{p} in {x}, {keep} along {length} carry {h} collect {out} {{ ; {h} = tanh({h} + r{p}) * float(k{p})[:, none] ; {out} = {h} ; }}
{h} = zeros(shape=[batch, 4]) ; scan r{p} in {x} along {length} carry {h} collect {out} {{ ; {h} = 0.5 * {h} + r{p} ; {out} = {h} ; }}
{h} = zeros(shape=[batch, 4]) ; scan r{p} in {x} * {weight} along {length} carry {h} collect {out} {{ ; {h} = 0.5 * {h} + r{p} ; {out} = {h} ; }}
{h} = zeros(shape=[batch, 4]) ; scan r{p} in {x} along {length} carry {h} collect {out} keep {keep} {{ ; a{p} = softmax(where({keep}, einsum("b n d, b d -> b n", {x}, {h}), -inf), axis=1) ; {h} = tanh(r{p} + einsum("b n, b n d -> b d", a{p}, {x} * {weight})) ; {out} = {h} ; }}
{h} = zeros(shape=[batch, 4]) ; scan r{p} in {x} along {length} carry {h} collect {out} keep {keep} {{ ; a{p} = softmax(einsum("b n d, b d -> b n", {x}, {h}), axis=1) ; {h} = tanh(r{p} + einsum("b n, b n d -> b d", a{p}, {x})) ; {out} = {h} ; }}
{h} = {x} ; scan s{p} in 3 carry {h} {{ ; {h} = tanh({h} + delay({h} * {weight}, by=1)) ; }} ; {out} = {h}
{h} = {x} ; scan s{p} in 3 carry {h} {{ ; {h} = tanh({h} + delay({h}, by=1)) * {weight} ; }} ; {out} = {h}
{h} = {x} ; scan s{p} in 2 carry {h} {{ ; {h} = {h} + masked_mean_pool({h}, {keep})[:, none] * 0.1 ; }} ; {out} = {h}
{h} = {x} ; d{p} = not {keep} ; scan s{p} in 3 carry {h}, d{p} until all(d{p}) {{ ; {h} = {h} * 0.5 + 1.0 ; d{p} = sum({h}) > 2.0 ; }} ; {out} = {h}
{h} = {x} ; d{p} = sum({x}) > 2.0 ; scan s{p} in 3 carry {h}, d{p} until all(d{p}) {{ ; {h} = {h} * 0.5 + 1.0 ; d{p} = sum({h}) > 2.0 ; }} ; {out} = {h}
{h} = zeros(shape=[batch, {length}]) ; scan r{p} in transpose({x}, order=[2, 0, 1]) along 4 carry {h} {{ ; {h} = tanh({h} + cumsum(r{p} * float({keep}), axis=1)) ; }} ; {out} = {x} + {h}[..., none]
"""

LENGTH_CHANGES = """
{x}[:, 1:] ; {keep}[:, 1:]
{x}[:, :-1] ; {keep}[:, :-1]
{x}[:, ::2] ; {keep}[:, ::2]
{x}[:, 1::2] ; {keep}[:, 1::2]
{x}[:, 1:] - {x}[:, :-1] ; {keep}[:, 1:] & {keep}[:, :-1]
{x}[:, 1:] - {x}[:, :-1] ; {keep}[:, 1:]
{x}[:, 1:] * {x}[:, :-1] ; {keep}[:, :-1]
max({x}[:, 1:], {x}[:, :-1]) ; {keep}[:, 1:] & {keep}[:, :-1]
resize({x}, mode=nearest, size=[2 * length({x}, axis=1)], axis=1) ; resize(float({keep}), mode=nearest, size=[2 * length({keep}, axis=1)], axis=1) > 0.5
concat([{x}, {x}], axis=1) ; concat([{keep}, {keep}], axis=1)
concat([flip({x}, axis=1), {x}], axis=1) ; concat([flip({keep}, axis=1), {keep}], axis=1)
merge(stack([{x}, tanh({x})], axis=2), axis=1) ; merge(expand({keep}[:, :, none], axis=2, length=2), axis=1)
merge(split({x}, into=[1, 4], axis=2), axis=1) ; {keep}
prepend({x}, parameter(shape=[1, 1, 4]) @ q{p}) ; concat([ones(shape=[batch, 1]) > 0.0, {keep}], axis=1)
append({x}, parameter(shape=[1, 2, 4]) @ q{p}) ; concat([{keep}, ones(shape=[batch, 2]) > 0.0], axis=1)
pad({x}, before=1, after=2) ; pad(float({keep}), before=1, after=2) > 0.5
pad({x}, before=1, mode=edge) ; pad(float({keep}), before=1, mode=edge) > 0.5
pad({x}, before=2, after=2, mode=reflect) ; pad(float({keep}), before=2, after=2, mode=reflect) > 0.5
conv({x} * {weight}, out=4, kernel=3, stride=2, padding=1) @ c{p} ; conv_keep({keep}, kernel=3, stride=2, padding=1)
conv({x} * {weight}, out=4, kernel=3, padding=1, dilation=2) @ c{p} ; conv_keep({keep}, kernel=3, padding=1, dilation=2)
max_pool({x}, kernel=2, ceil_mode=true) ; conv_keep({keep}, kernel=2, stride=2, ceil_mode=true)
max_pool({x}, kernel=2) ; conv_keep({keep}, kernel=2, stride=2)
average_pool({x} * {weight}, kernel=2, ceil_mode=true, count_include_pad=false) ; conv_keep({keep}, kernel=2, stride=2, ceil_mode=true)
conv_transpose({x} * {weight}, out=4, kernel=2, stride=2) @ c{p} ; resize(float({keep}), mode=nearest, size=[2 * length({keep}, axis=1)], axis=1) > 0.5
conv_transpose({x}, out=4, kernel=3, stride=2, padding=1, output_padding=1) @ c{p} ; resize(float({keep}), mode=nearest, size=[2 * length({keep}, axis=1)], axis=1) > 0.5
conv_transpose({x} * {weight}, out=4, kernel=3) @ c{p} ; pad(float({keep}), after=2) > 0.5
"""

RARE_SUMMARIES = """
masked_mean_pool({x}, {keep})
masked_max_pool({x}, {keep})
last_token({x}, {keep})
sum({x} * {weight}, axis=1)
sum(where({hidden}, {x}, 0.0), axis=1) / sum({weight}, axis=1)
max(where({hidden}, {x}, -inf), axis=1)
{x}[:, 0]
{x}[:, -1]
linear(statistics_pooling({x}, {keep}), out=4) @ s{p}
einsum("b n d, b n -> b d", {x}, float({keep}))
softmax(where({keep}, sum({x}), -inf), axis=1) ; einsum("b n, b n d -> b d", {p}1, {x} * {weight})
topk(where({hidden}, {x}, -inf), 2, axis=1) ; {p}1[:, 0]
sort(where({hidden}, {x}, inf), axis=1) ; {p}1[:, 0]
attend(parameter(shape=[1, 4]) @ q{p} + zeros(shape=[batch, 4]), {x}, {x}, mask=visible({keep}))
gru({x}, hidden=4, reset=after, keep={keep}) @ l{p} ; {p}1a[:, 0]
gather({x}, argmax(where({keep}, sum({x}), -inf), axis=1), axis=1)
gather({x}, argmax(where({keep}, positions({keep}), -1), axis=1), axis=1)
merge({x} * {weight}, axis=1) ; {x}[:, 0]
"""
"""Pooling over all positions."""

LAYER_FORMS, LOOP_FORMS, SUMMARY_FORMS = map(read_forms, (RARE_LAYERS, LOOPS, RARE_SUMMARIES))
CHANGE_FORMS = read_forms(LENGTH_CHANGES)
ELEMENTWISE = (
    "{0} + {1}",
    "{0} * {1}",
    "max({0}, {1})",
    "where({2}, {0}, 0.0)",
    "where({2}, {0}, -inf)",
    "where({2}, {0}, {1})",
    "layer_norm({0}, eps=1e-5) @ n{3}",
    "linear({0}, out=4) @ w{3}",
    "attention({0}, heads=2, mask=causal & visible({4})) @ a{3}",
)


def write_loop(w: SpecWriter, x: Stream, form: list[str]) -> str:
    """Write a form of `LOOPS` and return the name of its value."""
    stem, names = w.name("s"), {"h": w.name("h"), "out": w.name("o"), "length": "n"}
    made = {"x": x.name, "keep": x.keep, "weight": w.weight(x), "p": stem, **names}
    w.lines += [line.format(**made) for line in form]
    return names["out"]


def write_length_change(w: SpecWriter, x: Stream) -> None:
    """Add a stream of another length, with its mask."""
    made = {"x": x.name, "keep": x.keep, "weight": w.weight(x), "p": w.name("c")}
    value, keep = w.rng.choice(CHANGE_FORMS)
    name = w.let(value.format(**made))
    w.streams.append(Stream(name, w.let(keep.format(**made)), f"{name}/0"))


def write_rare_layer(w: SpecWriter, x: Stream) -> None:
    """Add a layer."""
    kind = w.rng.random()
    if kind < 0.65:
        w.streams.append(Stream(write_form(w, x, LAYER_FORMS), x.keep, x.length))
    elif kind < 0.73 and x.length == "n+0":
        form = w.rng.choice(LOOP_FORMS)
        w.streams.append(Stream(write_loop(w, x, form), x.keep, x.length))
    elif kind < 0.85:
        write_length_change(w, x)
    else:
        other = w.rng.choice([s for s in w.streams if s.length == x.length])
        form = w.rng.choice(ELEMENTWISE)
        w.add(form.format(x.name, other.name, w.hidden(x), w.name("e"), x.keep), x)


def finish_spec(w: SpecWriter, side: str, *, replaced: bool, is_pooled: bool) -> PaddedSpec:
    """Return the spec of the written statements, which returns the last stream or its summary."""
    x = w.streams[-1]
    is_pooled = is_pooled or x.length != "n+0"
    result = write_form(w, x, SUMMARY_FORMS) if is_pooled else x.name
    header = HEADER.format(side=side, shape="batch, 4" if is_pooled else "batch, n, 4")
    definitions, graph = header.split("graph g")
    body = "\n".join(f"  {line}" for line in (*w.lines, f"return {result}"))
    text = f"{definitions}{DEFINITIONS.strip()}\ngraph g{graph}{body}\n}}\n"
    is_shorter = any(s.length != "n+0" for s in w.streams)
    return PaddedSpec(text, side, replaced, is_shorter)


def write_rare_spec(seed: int) -> PaddedSpec:
    """Return a random spec of rare ops."""
    rng = random.Random(seed)
    side, replaced = rng.choice(SIDES), rng.random() < 0.35
    w = SpecWriter(rng)
    w.streams.append(Stream("x", "keep", "n+0"))
    if replaced:
        w.add(f"where({w.hidden(w.streams[0])}, x, 0.0)", w.streams.pop())
    for _ in range(rng.randint(1, 5)):
        write_rare_layer(w, w.pick())
    return finish_spec(w, side, replaced=replaced, is_pooled=rng.random() < 0.35)


def write_single_form(form: list[str], side: str, *, is_pooled: bool = False) -> PaddedSpec:
    """Return a spec of one form of `RARE_LAYERS` or `LOOPS`."""
    w = SpecWriter(random.Random(0))
    x = Stream("x", "keep", "n+0")
    made = write_loop(w, x, form) if "{h}" in form[0] else write_form(w, x, [form])
    w.streams.append(Stream(made, "keep", "n+0"))
    return finish_spec(w, side, replaced=False, is_pooled=is_pooled)
