"""Build ONNX models from lowered graphs, verify them, and write models and packages to disk.

A model is built from graphs, a target and weight values. A model's `.onnx` file or a package's
index is written after all other files. The verifier compares each model's types with the types of
the IR graph, and raises `InvalidModelError` for an incorrect lowering. The verifier does not use
`assert`, so that it also works with `python -O`.
"""
