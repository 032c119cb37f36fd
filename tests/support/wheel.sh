#!/bin/sh
# An installed specc by itself: nothing of the source is on its path.
set -e
specc=$1
$specc --version
$specc check gpt2 -q
$specc explain e302 -q | head -1
$specc compile digits -o digits.onnx --force -q
$specc verify digits.onnx --rounds 1
$specc compile numbers --graphs all -o numbers --force -q
$specc run numbers "de 305" --max-tokens 64
rm -rf digits.onnx* digits-* numbers
echo "the wheel works"
