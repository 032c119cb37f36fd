"""Build ONNX models from lowered graphs, verify them, and write models and packages to disk.

Input: graphs, a target and weight values. Output: files, of which the `.onnx` file or the package
index is written last. The verifier compares each model with its graph; a wrong lowering raises
`UnsoundModelError`. It does not use `assert`, so it also runs with `python -O`.
"""
