#!/bin/sh
# Puts the page, three compiled models and the runtime into a folder of static files: build.sh SPECC PACKAGES FOLDER.
# PACKAGES is the folder whose node_modules holds onnxruntime-web. `make browser` calls it.
set -eu
specc=$1 packages=$2 folder=$3
here=$(dirname "$0")
dist=$packages/node_modules/onnxruntime-web/dist
test -d "$dist" || { echo "onnxruntime-web is not in $packages: make browser puts it there"; exit 1; }
mkdir -p "$folder/models" "$folder/ort"
cp "$here"/index.html "$here"/style.css "$here"/*.js "$folder"
cp "$dist"/ort.wasm.min.mjs "$dist"/ort-wasm-simd-threaded.mjs "$dist"/ort-wasm-simd-threaded.wasm "$folder/ort"
"$specc" compile digits --target onnx --tap '*:weights' --weights-as inline -o "$folder/models/digits.onnx"
"$specc" compile dates --target onnx --graphs step --weights-as inline -o "$folder/models/dates"
"$specc" compile numbers --target onnx --graphs step --tap '*encoder_attn:weights' --weights-as inline -o "$folder/models/numbers"
echo "python3 -m http.server --directory $folder"
