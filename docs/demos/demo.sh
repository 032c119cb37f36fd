#!/bin/sh
# What `make demo` shows: trained models, compiled from their specs, that read pictures, dates and numbers.
set -eu
specc=$1
out=out
bold= plain=
if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); fi
mkdir -p "$out"

say() {
  printf '\n%s$ specc' "$bold"
  for word; do
    case $word in *" "*) printf ' "%s"' "$word" ;; *) printf ' %s' "$word" ;; esac
  done
  printf '%s\n' "$plain"
  "$specc" "$@"
}

echo "A small Vision Transformer, described in specs/models/digits.yaml, trained on scanned digits."
say compile specs/models/digits.yaml -o "$out/digits.onnx"
for name in seven three zero four nine two; do
  say run "$out/digits.onnx" "docs/demos/digits/$name.png"
done
say run "$out/digits.onnx" docs/demos/digits/seven.png --attention "$out/seven-attention.html"
say verify "$out/digits.onnx"
printf '\nWhere [CLS] looked: %s/seven-attention.html\n' "$out"

printf '\nA recurrent translator with additive attention (2014), described in specs/models/dates.yaml.\n'
say compile specs/models/dates.yaml --graphs all -o "$out/dates"
for date in "3 mai 1979" "Thursday, May 3rd, 1979" "3. Mai 1979"; do
  say run "$out/dates" "$date"
done
say run "$out/dates" "3rd May 79" --num-beams 4 --num-return-sequences 2
say run "$out/dates" "3 mai 1979" --attention "$out/dates-attention.html"
say verify "$out/dates"
printf '\nHow day, month and year cross over: %s/dates-attention.html\n' "$out"

printf '\nA character Transformer with rotary positions, described in specs/models/numbers.yaml.\n'
say compile specs/models/numbers.yaml --graphs all -o "$out/numbers"
for text in "three hundred and five" "hunderteintausendeinhunderteins" "en 21016" "de 30017"; do
  say run "$out/numbers" "$text"
done
say run "$out/numbers" "de 305" --attention "$out/numbers-attention.html"
say verify "$out/numbers"
printf '\nWhere each letter looked, by the heads of the last layer: %s/numbers-attention.html\n' "$out"
