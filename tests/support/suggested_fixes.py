"""The fixes that messages of the golden files suggest, applied: for each fix the replaced text and
its replacement.

`APPLIED_FIXES` lists them by golden file: the fix as the help contains it, a text of the case, and
its replacement. A fix for several places is applied at one. `OTHER_ADVICE` are code spans in the
help that are not text of a spec.
"""

OTHER_ADVICE = {
    "specc list", "specc show", "specc doc linear", "specc list specs", "specc list types", "--init-missing 0", "--init-missing", "specc convert", "git lfs pull", "a and b", ": ", "(name: type, …)",
    "extends …", "--config DIR", "--quantize int8", "--baseline MODEL", "theta: …", "width: …", "the 0.418 0.24968", "specc check",
    "--graph sentence_embeddings", "specc 1",
    "--graphs all", 'graphs="all"', "hf:ck/lama", "specc check SPEC --config ck", "--set width=…",
    "specc check SPEC --config sentences/0_Transformer",
    "specc compile SPEC --weights a.safetensors", "specc compile SPEC --weights two/a.safetensors",
}  # fmt: skip
"""Commands, replaced text, and changes of another file or command line."""

CALL_AS_VALUE = """\
  f = mlp(hidden=16, act=gelu) @ mlp
  return residual(x, f=f,"""
CALL_AS_ARGUMENT = "  return residual(x, f=mlp(hidden=16, act=gelu) @ mlp,"
SHIFTED_INDEX = """\
keep[j - 1]

graph g(x: float[batch, n, 8], keep: keep[batch, n]) -> (y: float[batch, n, 8]) {
  return attention(x, heads=2, mask=before(keep)) @ attn"""
SHIFTED_TENSOR = """\
keep[j]

graph g(x: float[batch, n, 8], keep: keep[batch, n]) -> (y: float[batch, n, 8]) {
  return attention(x, heads=2, mask=before(pad(keep, before=1)[:, 0:n])) @ attn"""
MEAN = "x = x - insert(mean(x, axis=1), axis=1)"
RAGGED = "s = concat([s, t])"
GRID = "grid(dot, x, x)"

RUN_TIME_TABLE = """\
block expert(x: float[..., d], table: float[m, d]) -> float[..., d] {
  near = softmax(matmul(linear(x, out=d) @ q, transpose(table)))
  return matmul(near, table)
}

graph g(x: float[batch, n, d], table: float[m, d]) -> (y: float[batch, n, d]) {
  scores = softmax(linear(x, out=experts) @ gate)
  gates, ids = topk(scores, k)
  return route(x, ids, gates, to=expert(table=table), experts=experts) @ experts
}
"""
ROWS_WITH_MORE = """\
block expert(x: float[..., 2 * d]) -> float[..., d] {
  return linear(x, out=d) @ q
}

graph g(x: float[batch, n, d], table: float[m, d]) -> (y: float[batch, n, d]) {
  scores = softmax(linear(x, out=experts) @ gate)
  gates, ids = topk(scores, k)
  read = matmul(softmax(matmul(x, transpose(table))), table)
  x = concat([x, read])
  return route(x, ids, gates, to=expert, experts=experts) @ experts
}
"""

APPLIED_FIXES: dict[str, list[tuple[str, str, str]]] = {
    "E0301-axes": [("x[:, none]", "y = f(x)", "y = f(x[:, none])[:, 0]")],
    "E0301-axes-of-a-result": [
        ("mean(x, axis=1)", "return linear(x, out=8)", "return linear(mean(x, axis=1), out=8)"),
    ],
    "E0311": [("where a = …", "dims a, n", "dims a, n\nwhere a = 2 * n")],
    "E0101-and-in-a-condition": [("a & b", "a and b", "a & b")],
    "E0101-and-is-a-sign": [("a & b", "x and x", "x > 0 & x > 0")],
    "E0101-comparison-is-two-signs": [("==", "x = 1", "2 == 1")],
    "E0101-for": [
        ("repeat i in 3 { … }", "for i in range(3) { x =", "repeat i in 3 { x ="),
        ("scan x in xs along n carry h { … }", "for i in range(3) { x = x * 2.0 }",
         "h = 0.0\n  scan v in x along n carry h { h = h + v }"),
    ],
    "E0101-scan-without-end": [
        ("scan row in x along n", "scan step carry x {\n    x = x + 1.0",
         "h = 0.0\n  scan row in x along n carry h {\n    h = h + row"),
        ("scan step in 8", "scan step carry", "scan step in 8 carry"),
    ],
    "E0101-if": [
        ("when c { … } else { … }", "if n > 2 { x = x * 2.0 }", "when a { x = x * 2.0 } else { x = -x }"),
        ("a if c else b", "if n > 2 { x = x * 2.0 }", "x = x * 2.0 if a else x"),
        ("where(c, a, b)", "if n > 2 { x = x * 2.0 }", "x = where(x > 2.0, x * 2.0, x)"),
    ],
    "E0101-if-as-a-value": [
        ("a if c else b", "if x > 0.0: x", "x if 2 == 1 else -x"),
        ("where(c, a, b)", "if x > 0.0: x", "where(x > 0.0, x, -x)"),
    ],
    "E0101-in-place": [("x = x + …", "x += 1.0", "x = x + 1.0")],
    "E0101-missing-arrow": [
        ("-> float[batch, n, d]", "f(x: float[n]) float", "f(x: float[n]) -> float"),
        ("-> (name: type, …)", "f(x: float[n]) float[n]", "f(x: float[n]) -> (y: float[n])"),
    ],
    "E0101-operator-missing-at-line-end": [("z = …", "    z * 2", "z = x * 2")],
    "E0101-operator-missing-in-line": [("name = …", "x z + 1", "x\n  name = z + 1")],
    "E0101-several-items": [
        ("<=", "i <=", "i <= j"),
        ("-> float[batch, n, d]", "f() float", "f() -> float[n]"),
        ("-> (name: type, …)", "f() float", "f() -> (y: float[n])"),
    ],
    "E0101-statement-without-name": [
        ("name = relu(…)", "relu(x)", "y = relu(x)"),
        ("return …", "relu(x)\n  return x", "return relu(x)"),
    ],
    "E0106-exclamation-mark": [("!=", "!causal", "i != j")],
    "E0107-behind-parentheses": [("(f(x) @ name)", "(linear(x, out=n) + x) @ w", "(linear(x, out=n) @ w) + x")],
    "E0107-matmul": [("matmul(x, w)", "x @ w", "matmul(x, w)")],
    "E0113-version-yaml": [("specc: 1", "specc: 7", "specc: 1")],
    "E0113-version": [("specc 1", "specc 2", "specc 1")],
    "E0116-ignore": [
        ('ignore "use_cache", "dropout", "seed"', 'ignore "use_cache", "dropout"\n  ignore "dropout", "seed"',
         'ignore "use_cache", "dropout", "seed"'),
    ],
    "E0116-entry-yaml": [("- ignore: …", "    ignore: h.mask", "  - ignore: h.mask")],
    "E0116-lists-yaml": [
        ("ignore keys", "ignore keys: [use_cache]\n  ignore keys: [dropout]", "ignore keys: [use_cache, dropout]")
    ],
    "E0119-input-after-option": [("name=value", "linear(out=n, x)", "linear(x, out=n)")],
    "E0120-scan": [("scan x, y in xs, ys", "scan a, c in x along", "scan a, c in x, x along")],
    "E0125-list-for-map-yaml": [
        ("d: {type: int, default: 512}", "config: [d, heads]", "config: {d: {type: int, default: 512}}"),
        *((f"- {kind}", "items: {f: g}", "items:\n  - " + text) for kind, text in (
            ("graph: classify", "{graph: f, in: {x: 'float[n]'}, out: 'float[n]', do: [return: x]}"),
            ("block: layer", "{block: f, in: {x: 'float[n]'}, out: 'float[n]', do: [return: x]}"),
            ("mask: near(n)", "{mask: near(n), is: i - j < n}"),
        )),
    ],
    "E0222-other-format": [("specc: 1", "model: m\n", "specc: 1\nmodel: m\n")],
    "E0126-missing-keys-yaml": [
        ("out: …", "in: {x: 'float[n]'}", "in: {x: 'float[n]'}\n    out: float[n]"),
        ("do: …", "in: {x: 'float[n]'}", "in: {x: 'float[n]'}\n    do: [return: x]"),
        ("is: …", "- mask: m", "- mask: m\n    is: i == j"),
        ("to: …", "- tie: a", "- tie: a\n    to: b"),
        ("of:", "t: {of: ids}", "t: {of: ids, from: logits}"),
        ("from:", "t: {of: ids}", "t: {of: ids, from: logits}"),
    ],
    "E0127-input": [
        ("inputs_ids: float[batch, n, d]", "main(inputs_ids,", "main(inputs_ids: int[batch, n],"),
        ("input_ids: float[batch, n, d]", "embed(input_ids)", "embed(input_ids: int[b, n])"),
    ],
    "E0127-input-yaml": [
        ("ids: float[batch, n, d]", "in: [ids,", "in: [{ids: 'float[batch, n]'},"),
    ],
    "E0202-length-not-declared": [
        ("dims batch", "\ngraph", "\ndims batch\ngraph"),
        ("dims n", "\ngraph", "\ndims n\ngraph"),
    ],
    "E0203-tokenizer": [
        ('tokenizer("tokenizer.json")', "tokenizer([3])", 'tokenizer("tokenizer.json")'),
        ("tokenizer()", "tokenizer([3])", "tokenizer()"),
    ],
    "E0203-a-curve-is-no-norm": [
        ("layer_norm(eps=1e-5)", "normalize: relu", "normalize: layer_norm(eps=1e-5)"),
        ("rms_norm(eps=1e-6)", "normalize: relu", "normalize: rms_norm(eps=1e-6)"),
    ],
    "E0206-kinds-of-values": [("cast(ids, to=float)", "x + ids", "x + cast(ids, to=float)")],
    "E0206-power-of-whole-numbers": [
        ("cast(x, to=float)", "x ** positions(x)", "cast(cast(x, to=float) ** cast(positions(x), to=float), to=int)"),
    ],
    "E0207-condition-of-a-tensor": [
        ("where(condition, a, b)", "when x > 0 {\n    x = relu(x)\n  }", "x = where(x > 0.0, relu(x), x)"),
    ],
    "E0226-a-pattern": [("under decoder.model", 'under "layers.{i}"', "under decoder.model")],
    "E0227-no-table": [('"text_config": {…}', '"hidden_size": 8', '"text_config": {}')],
    "E0227-a-number": [('"text_config": {…}', '"text_config": 8', '"text_config": {}')],
    "E0305-carry-becomes-truth": [("cast(x, to=float)", "h = row > 0.0", "h = cast(row > 0.0, to=float)")],
    "E0327-backwards": [
        ("flip(x, axis=…)", "x[:, ::-1]", "flip(x, axis=1)"),
        ("flip(x, axis=1)[:, ::2]", "float[batch, n, 8]) {\n  return x[:, ::-1]", "float[...]) {\n  return flip(x, axis=1)[:, ::2]"),
    ],
    "E0332-gates-of-all": [("gather(…, ids, axis=2)", "ids, scores", "ids, gather(scores, ids, axis=2)")],
    "E0604-window-without-positions": [
        ("insert(x, axis=1)", "attend_by(dot, x, z, z, mask=window(3))\n  return y",
         "attend_by(dot, insert(x, axis=1), z, z, mask=window(3))\n  return squeeze(y, axis=1)"),
        ("local_window(center, reach)", "attend_by(dot, x, z, z, mask=window(3))\n  return y",
         "attend_by(dot, insert(x, axis=1), z, z, mask=local_window(x[:, :1], 3))\n  return squeeze(y, axis=1)"),
        ("trailing_window(at, back)", "attend_by(dot, x, z, z, mask=window(3))\n  return y",
         "attend_by(dot, insert(x, axis=1), z, z, mask=trailing_window(cast(x[:, :1], to=int), 3))\n  return squeeze(y, axis=1)"),
    ],
    "E0605-score": [("dot(a, b)", "half = q", "half = dot(q, k)")],
    "E0204-conv2d": [("conv(p, out=8, kernel=3) @ c", "conv2d(x, out=8, kernel=3)", "conv(x, out=8, kernel=3)")],
    "E0204-of-a-library": [
        ("transpose(x, order=[0, 2, 1])", "x.permute(0, 2, 1)", "transpose(x, order=[0, 2, 1])"),
        ("attend(q, k, v, mask=causal)", "softmax_causal(a)", "attend(x, x, x, mask=causal)"),
        ("masked_softmax(matmul(q, transpose(k)), causal)", "softmax_causal(a)", "masked_softmax(matmul(x, transpose(x)), causal)"),
    ],
    "E0204-reshape": [
        ("split(x, into=[2, 4], axis=2)", "reshape(x, [batch, n, 2, 4])", "merge(split(x, into=[2, 4], axis=2), axis=2)"),
        ("merge(x, axis=1)", "reshape(x, [batch, n, 2, 4])", "split(merge(x, axis=1), into=[n, 8], axis=1)"),
        ('rearrange(x, "b n (h d) -> b h n d", sizes=[2])', "reshape(x, [batch, n, 2, 4])",
         'rearrange(rearrange(x, "b n (h d) -> b h n d", sizes=[2]), "b h n d -> b n (h d)")'),
    ],
    "E0204-tril": [
        ("mask=causal", "tril(x)", "attend(x, x, x, mask=causal)"),
        ("mask near(n: int) = i - j < n", "graph", "mask near(n: int) = i - j < n\ngraph h(x: float[n]) -> (y: float[n]) { return x }\ngraph"),
    ],
    "E0205-a-mask-is-no-function": [("mask=", "apply(causal, x)", "attend(x, x, x, mask=causal)")],
    "E0211-call-as-value": [
        ("residual(x, f=mlp(…), …)", CALL_AS_VALUE, CALL_AS_ARGUMENT),
    ],
    "E0211-counted": [
        ("count_include_pad=true", "padding=1)", "padding=1, count_include_pad=true)"),
        ("count_include_pad=false", "padding=1)", "padding=1, count_include_pad=false)"),
    ],
    "E0211-kernel-of-conv": [
        ("kernel=", "conv(x, out=8)", "conv(x, out=8, kernel=1)"),
        ("weight=", "conv(x, out=8) @ c", "conv(x, weight=parameter(shape=[8, 8, 1]) @ w, bias=false)"),
    ],
    "E0211-missing-option": [
        ("attend(q, k, v, mask=, scale=none, cap=0.0, add=none, sinks=none) @ name", "attend(x, x, x)", "attend(x, x, x, mask=all)"),
    ],
    "E0211-one-input-too-many": [("relu(x)", "relu(x, x)", "relu(x)")],
    "E0214-no-return": [("return y", "y = relu(x)\n", "y = relu(x)\n  return y\n")],
    "E0219-no-graph": [
        ("graph name(x: float[n]) -> (y: float[n]) { … }", "block", "dims n\ngraph name(x: float[n]) -> (y: float[n]) { return x }\nblock"),
    ],
    "E0220-no-type": [("width: int = 8", "width = 8", "width: int = 8")],
    "E0302-argument": [("out=vocab", "out=d", "out=vocab")],
    "E0302-declared": [
        ("out=width", "out=width + 1", "out=width"),
        ("width + 1", "y: float[batch, n, width]", "y: float[batch, n, width + 1]"),
    ],
    "E0302-axis-missing": [
        ("insert(first, axis=1)", "x + first", "x + insert(first, axis=1)"),
        ("insert(insert(scale, axis=1), axis=2)", "x * scale", "x * insert(insert(scale, axis=1), axis=2)"),
    ],
    "E0302-lengths-and-positions": [("insert(len, axis=1)", "< len", "< insert(len, axis=1)")],
    "E0302-two-lengths": [
        ("attend(x, memory, memory, mask=all)", "x + memory", "x + attend(x, memory, memory, mask=all)"),
        ("where src = tgt", "(y: float[batch, tgt, 8]) {", "(y: float[batch, tgt, 8]) where src = tgt {"),
    ],
    "E0208-shifted-index-in-mask": [
        ("keep[j - 1]", SHIFTED_INDEX, SHIFTED_TENSOR),
        ("pad(keep, before=1)", SHIFTED_INDEX, SHIFTED_TENSOR),
    ],
    "E0208-index-of-several": [
        ("gather(x, ids, axis=…)", "x[:, at]", "gather(x, at[:, none], axis=1)[:, 0]"),
    ],
    "E0304-no-such-axis": [("along n", "along m", "along n")],
    "E0304-one-row-less": [("along n - 1", "along n", "along n - 1")],
    "E0304-two-axes": [
        ("repeat i in 4 { … }", "scan row in x along 4 carry h {", "repeat i in 4 {\n    row = x[:, i]"),
        ("x[:, i]", "scan row in x along 4 carry h {", "repeat i in 4 {\n    row = x[:, i]"),
    ],
    "E0304-turns-of-a-tensor": [
        ("scan x in xs along n { … }", "scan step in h carry h, done {", "scan row in x along n carry h, done {"),
    ],
    "E0305-changes-shape": [("s = linear(…, out=…)", RAGGED, "s = linear(concat([s, t]), out=8) @ shorter")],
    "E0315-eps-of-a-length": [
        ("x * scale", "eps=1.0 / float(length(x, axis=1))) @ norm", "eps=1e-5) @ norm * (1.0 / float(length(x, axis=1)))"),
        ("x + shift", "eps=1.0 / float(length(x, axis=1))) @ norm", "eps=1e-5) @ norm + 1.0 / float(length(x, axis=1))"),
    ],
    "E0315-size-of-a-list": [
        ("x * scale", "x + float(range(int(0.5 * length(x, axis=1))))", "x * (0.5 * length(x, axis=1))"),
        ("x + shift", "x + float(range(int(0.5 * length(x, axis=1))))", "x + 0.5 * length(x, axis=1)"),
    ],
    "E0322-same-with-a-stride": [("padding=[1, 2]", "padding=same", "padding=[1, 2]")],
    "E0323-causal-picture": [("padding=same", "padding=causal", "padding=same")],
    "E0323-negative": [("x[:, 1:]", "conv(x, out=8, kernel=3, padding=[-1, 0])", "conv(x[:, 1:], out=8, kernel=3)")],
    "E0326-more-than-a-mirror-shows": [("mode=edge", "mode=reflect", "mode=edge")],
    "E0329-by-a-factor-of-a-length": [("size=[…]", "factor=1.3", "size=[6, 8]")],
    "E0324-padding": [
        ("[height, width]", "[1, 1, 1, 1]", "[1, 1]"),
        ("[[top, bottom], [left, right]]", "[1, 1, 1, 1]", "[[1, 1], [1, 1]]"),
    ],
    "E0333-table-of-run-time": [
        ("concat([x, …])", RUN_TIME_TABLE, ROWS_WITH_MORE),
    ],
    "E0401-inside-another-key": [("--set theta=…", "--init 0", "--set theta=3.0 --init 0")],
    "E0401-missing": [("--set width=…", "--init 0", "--set width=8 --init 0")],
    "E0519-two-shapes": [("@", "out=4) @ w", "out=4) @ v")],
    "E0520-no-name": [("@ name", "parameter(shape=[8])", "parameter(shape=[8]) @ name")],
    "E0522-stack": [('stack("w.{e}", e=8)', "i=2", "e=2")],
    "E0523-three-ways": [('weights { from "model.safetensors" }', "graph", 'weights { from "model.safetensors" }\ngraph')],
    "E0526-inside-each-other": [
        ("… @ name", "linear(relu(linear(x, out=8)), out=8)", "linear(relu(linear(x, out=8) @ up), out=8) @ down"),
        ("weights { share name }", "return linear(relu(linear(x, out=8)), out=8)\n}",
         "return linear(relu(linear(x, out=8) @ name), out=8) @ name\n}\nweights { share name }"),
        ("@ name", "linear(relu(linear(x, out=8)), out=8)", "linear(relu(linear(x, out=8) @ name), out=8) @ other"),
    ],
    "E0526-items-of-a-list": [
        ('@ "name.{i}"', "@ w", '@ "w.{i}"'),
        ("weights { share w }", "graph", "weights { share w }\ngraph"),
    ],
    "E0526-other-calls-than-said": [
        ("… @ name", "linear(h, out=8) @ proj", "linear(h, out=8) @ down"),
        ("weights { share layer.proj }", "weights { share layer }", "weights { share layer  share layer.proj }"),
    ],
    "E0526-repeat-without-under-yaml": [
        ("{repeat: i in …, under: 'layers.{i}', do: […]}", "- repeat: i in 3\n", "- repeat: i in 3\n        under: 'layers.{i}'\n"),
        ("weights: [{share: inner}]", "dims:", "weights: [{share: inner}]\ndims:"),
    ],
    "E0526-repeat-without-under": [
        ('repeat i in … under "layers.{i}" { … }', "repeat i in layers {", 'repeat i in layers under "layers.{i}" {'),
        ("weights { share proj }", "graph", "weights { share proj }\ngraph"),
    ],
    "E0526-two-calls-yaml": [
        ("weights: name", "weights: inner}}\n      - return", "weights: name}}\n      - return"),
        ("weights: [{share: inner}]", "dims:", "weights: [{share: inner}]\ndims:"),
    ],
    "E0526-two-calls": [
        ("… @ name", "x = x + mlp(x, hidden=8, act=relu)", "x = x + (mlp(x, hidden=8, act=relu) @ name)"),
        ("weights { share name }", "x = x + mlp(x, hidden=8, act=relu)\n  return x + mlp(x, hidden=8, act=relu)\n}",
         "x = x + (mlp(x, hidden=8, act=relu) @ name)\n  return x + (mlp(x, hidden=8, act=relu) @ name)\n}\nweights { share name }"),
        ("@ name", "x = x + mlp(x, hidden=8, act=relu)", "x = x + (mlp(x, hidden=8, act=relu) @ name)"),
    ],
    "E0601-numbers-as-mask": [("x > 0", "mask=bias", "mask=bias > 0.0")],
    "E0603-heads": [
        ("split_heads(x, heads)", "attend_by(s(slope), x, x, x, mask=causal)\n  return y",
         "attend_by(s(slope), split_heads(x, 2), split_heads(x, 2), split_heads(x, 2), mask=causal)\n  return merge_heads(y)"),
    ],
    "E0606-no-noise": [
        ("noise=gumbel_noise(u)", "x: float[batch, n, 8]) -> (y: float[batch, n, 8]) {\n  y, _ = attend_by(dot, x, x, x, mask=all, normalize=sampled)",
         "x: float[batch, n, 8], u: float[batch, n, n]) -> (y: float[batch, n, 8]) {\n"
         "  y, _ = attend_by(dot, x, x, x, mask=all, normalize=sampled, noise=gumbel_noise(u))"),
    ],
    "E0606-noise-for-nothing": [("normalize=sampled", "normalize=hard", "normalize=sampled")],
    "E0607-widths-of-a-score": [
        ("additive(size)", "attend_by(cosine, x, z, z, mask=all)", "attend_by(additive(4), x, z, z, mask=all) @ name"),
        ("attend_by(general, …) @ name", "attend_by(cosine, x, z, z, mask=all)", "attend_by(general, x, z, z, mask=all) @ name"),
        ("linear(k, out=8) @ name", "attend_by(cosine, x, z, z, mask=all)", "attend_by(cosine, x, linear(z, out=8) @ name, z, mask=all)"),
    ],
    "E0607-widths-of-attend": [
        ("additive(size)", "attend(x, z, z, mask=all)", "attend_by(additive(4), x, z, z, mask=all) @ name"),
        ("attend_by(general, …) @ name", "attend(x, z, z, mask=all)", "attend_by(general, x, z, z, mask=all) @ name"),
        ("linear(k, out=8) @ name", "attend(x, z, z, mask=all)", "attend(x, linear(z, out=8) @ name, z, mask=all)"),
    ],
    "E0608-no-scores": [("normalizer mine(s) = …", "mine = 1.0", "mine(s) = softmax(s)")],
    "E0609-one-a-row": [("insert(…, axis=-1)", "sum(exp(s), axis=-1)", "exp(s) / insert(sum(exp(s), axis=-1), axis=-1)")],
    "E0701-nothing-generated": [
        ("generate NAME of INPUT from RESULT { … }",
         "dims batch\n\ngraph g(x: float[batch, 4]) -> (y: float[batch, 2]) {\n  return linear(x, out=2) @ w\n}",
         "dims batch, n\n\ngraph g(x: int[batch, n]) -> (y: float[batch, n, 2]) {\n  return embedding(x, size=2, dim=2) @ w\n}\n"
         "generate t of x from y { stop = 0 }"),
    ],
    "E0703-no-tokens": [("--graphs generate", "--graphs generate -o one.onnx", "--graphs step -o one")],
    "E0711-ahead": [("padding=causal", "padding=same", "padding=causal")],
    "E0711-every-second-row": [
        ("mask some = j % 2 == 0", "graph g(ids: int[batch, n]) -> (logits: float[batch, n, 9]) {\n"
         "  x = embedding(ids, size=9, dim=8) @ words\n  half = x[:, ::2]\n"
         "  y, _ = attend(insert(x, axis=1), insert(half, axis=1), insert(half, axis=1), mask=causal)",
         "mask some = j % 2 == 0\ngraph g(ids: int[batch, n]) -> (logits: float[batch, n, 9]) {\n"
         "  x = embedding(ids, size=9, dim=8) @ words\n"
         "  y, _ = attend(insert(x, axis=1), insert(x, axis=1), insert(x, axis=1), mask=causal & some)"),
        ("mask=causal & some", "half = x[:, ::2]\n  y, _ = attend(insert(x, axis=1), insert(half, axis=1), insert(half, axis=1), mask=causal)",
         "y, _ = attend(insert(x, axis=1), insert(x, axis=1), insert(x, axis=1), mask=causal & some)"),
    ],
    "E0711-fewer-rows": [("padding=causal", "kernel=3)", "kernel=3, padding=causal)")],
    "E0711-first-rows": [
        ("x[:, 0:1]", "x[:, 3:4]", "x[:, 0:1]"),
        ("delay(x, by=1)", "x[:, 3:4]", "delay(x, by=1)"),
        ("last(x)", "x + x[:, 3:4]", "x + delay(x, by=1)"),
        ("j < 4 & j <= i",
         "graph g(ids: int[batch, n]) -> (logits: float[batch, n, 4]) {\n"
         "  x = embedding(ids, size=5, dim=4) @ e\n  return x + x[:, 3:4]",
         "mask first = j < 4 & j <= i\n\n"
         "graph g(ids: int[batch, n]) -> (logits: float[batch, n, 4]) {\n"
         "  x = embedding(ids, size=5, dim=4) @ e\n  return x + attend(x, x, x, mask=first)"),
    ],
    "E0711-inside-a-loop": [
        ("last(x)", "insert(mean(h, axis=1) * row, axis=1)", "insert(row, axis=1)"),
        ("cumsum(x)", "insert(mean(h, axis=1) * row, axis=1)", "cumsum(h) * insert(row, axis=1)"),
    ],
    "E0711-keys-not-hidden": [
        ("where(seen, x, -inf)", f"softmax({GRID}, axis=2)", f"softmax(where(seen, {GRID}, -inf), axis=2)"),
        ("attend(..., mask=causal)", f"weigh(softmax({GRID}, axis=2), x)", "attend(x, x, x, mask=causal)"),
        ("where(squeeze(grid(causal, x, x), axis=1), w, 0.0)", f"softmax({GRID}, axis=2)",
         f"where(squeeze(grid(causal, x, x), axis=1), softmax({GRID}, axis=2), 0.0)"),
        ("seen = grid(causal, y, y)", f"softmax({GRID}, axis=2)",
         f"squeeze(softmax(where(grid(causal, x, x), insert({GRID}, axis=1), -inf), axis=3), axis=1)"),
    ],
    "E0711-keys-that-may-win": [
        ("where(seen, x, -inf)", "-1e4", "-inf"),
        ("seen = grid(causal, y, y)", f"max(where(seen, {GRID}, -1e4), axis=2)",
         f"squeeze(max(where(grid(causal, x, x), insert({GRID}, axis=1), -inf), axis=3), axis=1)"),
    ],
    "E0711-mean-over-keys": [
        ("sum(x, axis=-1) / sum(float(seen), axis=-1)", f"mean(where(seen, {GRID}, 0.0), axis=2)",
         f"sum(where(seen, {GRID}, 0.0), axis=-1) / sum(float(seen), axis=-1)"),
    ],
    "E0711-mean": [
        ("last(x)", MEAN, "x = x - insert(x[:, 0], axis=1) * 0.0"),
        ("cumsum(x)", MEAN, "x = x - cumsum(x)"),
    ],
    "E0711-rolled-padded-resized-normed": [
        ("delay(x, by=1)", "roll(x, 1)", "delay(x, by=1)"),
        ("last(...)", "insert(last(pad(x, after=1)), axis=1)", "cumsum(x)"),
        ("layer_norm(x, eps=1e-5) @ norm", "group_norm(x, groups=2, eps=1e-5, axis=-1) @ norm", "layer_norm(x, eps=1e-5) @ norm"),
    ],
    "E0712-heads-not-masked": [
        ("mask=causal", "mask=all", "mask=causal"),
        ("where(grid(causal, x, x), w, 0.0)", "split(w, into=[2, 2], axis=1)[:, :, 0]",
         "where(grid(causal, x, x), split(w, into=[2, 2], axis=1)[:, :, 0], 0.0)"),
        ("attend(..., mask=causal)", "mask=all", "mask=causal"),
    ],
    "E0712-heads-last": [
        ("where(grid(causal, x, x), w, 0.0)", "sigmoid(grid(dot, q, q))", "where(grid(causal, x, x), sigmoid(grid(dot, q, q)), 0.0)"),
        ("attend(..., mask=causal)", "w = sigmoid(grid(dot, q, q))", "_, w = attend(q, q, q, mask=causal)"),
    ],
    "E0712-weights-as-a-result": [
        ("where(squeeze(grid(causal, x, x), axis=1), w, 0.0)", 'einsum("b i d, b j d -> b i j", x, x)',
         'where(squeeze(grid(causal, x, x), axis=1), einsum("b i d, b j d -> b i j", x, x), 0.0)'),
    ],
    "E0712-sum-over-positions": [
        ("cumsum(x, axis=1)", 'einsum("b n d -> b d", x)\n  return linear(x + insert(total, axis=1)',
         "cumsum(x, axis=1)\n  return linear(x + total"),
        ("attend(x, x, x, mask=causal)", 'einsum("b n d -> b d", x)\n  return linear(x + insert(total, axis=1)',
         "attend(x, x, x, mask=causal)\n  return linear(x + total"),
    ],
    "E0712-inside-a-loop-over-another-axis": [("mask=causal", "mask=all", "mask=causal")],
    "E0712-no-comparison": [("& causal", "mask=both(pre)", "mask=both(pre) & causal")],
    "E0711-rows-behind": [("concat([memory, x], axis=1)", "concat([x, memory], axis=1)", "concat([memory, x], axis=1)")],
    "E0711-rows-of-a-head": [
        ("delay(x, by=1)", "x[:, 0:4], heads", "delay(x[:, 3:], by=1), heads"),
        ("last(x)", "x[:, 0:4], heads", "insert(last(x), axis=1), heads"),
        ("x[:, 3:]", "x[:, 4:]", "x[:, 3:]"),
    ],
    "E0712-head-looks-ahead": [("j < m | j <= i", "i < m | j <= i", "j < m | j <= i")],
    "E0717-picked-inside-a-loop": [
        ("repeat n in 6 { … }", "scan r in z along m carry x {\n    x = x + x[:, 0:1] * insert(r, axis=1)",
         "repeat n in 6 {\n    x = x + x[:, 0:1] * insert(z[:, n], axis=1)"),
    ],
    "W0601-every-second-row": [("keep: keep[batch, n] right", "keep: keep[batch, n])", "keep: keep[batch, n] right)")],
    "E0711-stream-ahead": [("padding=causal", "padding=same", "padding=causal")],
    "E0711-stream-of-fewer-rows": [("padding=causal", "padding=1", "padding=causal")],
    "E0712-stream-of-two-paces": [("x[:, 1::2]", "attention(slow, x,", "attention(slow, x[:, 1::2],")],
    "E0711-stride": [("stride=1", "stride=2", "stride=1")],
    "E0712-no-mask": [("mask=causal", "mask=all", "mask=causal")],
    "E0712-one-place-many-turns": [("mask=causal", "mask=all", "mask=causal")],
    "E0713-newest-added-back": [("last(...)", "insert(last(x, axis=1), axis=1)", "delay(x, by=1)")],
    "E0714-length": [
        ("positions(x)", "x / length(x, axis=1)", "x / insert(float(positions(x) + 1), axis=1)"),
        ("last(x)", "x / length(x, axis=1)", "x / 2.0"),
    ],
    "E0718-made-once": [
        ("cumsum(x)", "n: int[batch] = 2 * newest, newest: int[batch] = last(ids)", "n: int[batch, seq] = cumsum(ids)"),
    ],
    "E0718-reads-ahead": [("cumsum(x)", "flip(cumsum(flip(ids, axis=1), axis=1), axis=1)", "cumsum(ids)")],
    "E0723-infinite-sum": [
        ("where(s > -inf, x, 0.0)", "s / insert(sum(s, axis=-1), axis=-1)",
         "where(s > -inf, s, 0.0) / insert(sum(where(s > -inf, s, 0.0), axis=-1), axis=-1)"),
    ],
    "E0723-mean": [
        ("sum(x, axis=-1) / sum(float(s > -inf), axis=-1)", "insert(mean(exp(s), axis=-1), axis=-1)",
         "insert(sum(exp(s), axis=-1) / sum(float(s > -inf), axis=-1), axis=-1)"),
    ],
    "E0728-until-without-a-bound-yaml": [("- scan: step in 8", "- until: all(done)", "- scan: step in 8\n        until: all(done)")],
    "E0728-until-without-a-bound": [
        ("scan step in 8 carry … until all(…) { … }", "scan carry h", "scan step in 8 carry h"),
    ],
    "E0729-an-expression": [("carry h, done until all(done)", "all(h > 9.0)", "all(done)")],
    "E0729-no-boolean": [("done = p > 0.99", "all(h) {", "all(done) {")],
    "E0730-carried": [("int[batch, n]", "turns = sum(range(1), axis=0)", "turns = cast(done, to=int) * 0")],
    "E0730-collected": [("int[batch, n]", "z = sum(h, axis=1)", "z = sum(h, axis=2)")],
    "E0752-loop": [("--io-names specc", "--io-names genai", "--io-names specc")],
    "E0752-rows": [("--io-names specc", "--io-names hf", "--io-names specc")],
    "E0753-block-without-blocks": [
        ("--quantize int4", "--quantize int8", "--quantize int4"),
        ("--quantize int8-weights", "--quantize int8", "--quantize int8-weights"),
    ],
    "E0753-a-folder": [("-o m", "-o m.onnx", "-o m")],
    "E0753-beams": [("--graphs generate", "--num-beams 4", "--graphs generate --num-beams 4")],
    "W0505-one-call": [("@", "decoder.proj", "encoder.proj")],
    "W0601-group-norm-over-padding": [
        ("layer_norm(x, eps=1e-5) @ norm", "group_norm(x, groups=2, eps=1e-5, axis=-1) @ norm", "layer_norm(x, eps=1e-5) @ norm"),
    ],
    "W0601-loop-that-keeps-others": [("keep keep", "keep other", "keep keep")],
    "W0601-numbers-with-factors": [
        ("positions(keep)", "2 * positions(x) - positions(x)", "positions(keep)"),
    ],
    "W0601-over-the-end": [("keep=there", "padding=1) @ c\n", "padding=1, keep=there) @ c\n")],
    "W0601-padding": [("masked_mean_pool(x, keep)", "mean(x, axis=1)", "masked_mean_pool(x, keep)")],
    "W0601-divides-by-zero": [
        (
            "where(insert(keep, axis=2), y, 0.0)",
            "cumsum(w * x, axis=1) / cumsum(w, axis=1)",
            "where(insert(keep, axis=2), cumsum(w * x, axis=1) / cumsum(w, axis=1), 0.0)",
        ),
        ("max(z, 1e-6)", "/ cumsum(w, axis=1)", "/ max(cumsum(w, axis=1), 1e-6)"),
    ],
    "W0601-two-padding-masks": [
        ("where(there, x, -inf)", "softmax(max(scores, axis=2))", "softmax(where(there, max(scores, axis=2), -inf))"),
    ],
    "W0601-window-behind-pad": [
        ("where(insert(keep, axis=2), x, 0.0)", "pad(x,", "pad(where(insert(keep, axis=2), x, 0.0),"),
    ],
    "W0601-stride-and-left": [("there: keep[batch, n] right", "there: keep[batch, n] left", "there: keep[batch, n] right")],
}  # fmt: skip
