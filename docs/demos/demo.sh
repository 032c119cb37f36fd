#!/bin/sh
# What `make demo` shows: a trained model, compiled from its spec, reading real pictures.
set -eu
specc=$1
out=out
mkdir -p "$out"

say() { printf '\n\033[1m$ specc %s\033[0m\n' "$*"; "$specc" "$@"; }

echo "A small Vision Transformer, described in specs/models/digits.yaml, trained on scanned digits."
say compile specs/models/digits.yaml -o "$out/digits.onnx"
for name in seven three zero four nine two; do
  say run "$out/digits.onnx" "docs/demos/digits/$name.png"
done
say run "$out/digits.onnx" docs/demos/digits/seven.png --attention "$out/seven-attention.png"
say verify "$out/digits.onnx"
printf '\nWhere [CLS] looked: %s/seven-attention.png\n' "$out"
