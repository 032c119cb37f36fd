#!/bin/sh
# Copy the page and onnxruntime-web into a directory of static files, and compile the three models into this directory.
# Usage: build.sh SPECC PACKAGES DIRECTORY. `node_modules` in PACKAGES contains onnxruntime-web. Called by `make browser`.
set -eu
specc=$1 packages=$2 directory=$3
here=$(dirname "$0")
dist=$packages/node_modules/onnxruntime-web/dist
test -d "$dist" || { echo "onnxruntime-web is missing in $packages; make browser installs it"; exit 1; }
mkdir -p "$directory/models" "$directory/ort"
cp "$here"/index.html "$here"/style.css "$here"/*.js "$directory"
cp "$dist"/ort.wasm.min.mjs "$dist"/ort-wasm-simd-threaded.mjs "$dist"/ort-wasm-simd-threaded.wasm "$directory/ort"
"$specc" compile digits --target onnx --tap '*:weights' --weights-as inline -o "$directory/models/digits.onnx"
"$specc" compile dates --target onnx --graphs step --weights-as inline -o "$directory/models/dates"
"$specc" compile numbers --target onnx --graphs step --tap '*encoder_attn:weights' --weights-as inline -o "$directory/models/numbers"
echo "python3 -m http.server --directory $directory"
