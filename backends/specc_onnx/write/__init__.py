"""Build ONNX models from lowered graphs, verify them, and write models and packages to disk.

A model is built from graphs, a target and weight values. The `.onnx` file of a model or the index
of a package is written after all other files. The verifier compares the types of each model with
those of its graph; an incorrect lowering raises `UnsoundModelError`. The verifier does not use
`assert`, so that it also works with `python -O`.
"""
