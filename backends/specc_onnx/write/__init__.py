"""Build ONNX models from lowered graphs, verify them, and write models and packages to disk.

Input: graphs, a target and weight values. Output: files, of which the `.onnx` file or the package
index is written last. The verifier compares the types of each model with those of its graph; an
incorrect lowering raises `UnsoundModelError`. It does not use `assert`, so that it also works with
`python -O`.
"""
