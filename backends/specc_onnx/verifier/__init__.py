"""Verify a built model against the graph that it was lowered from.

Input: an ONNX model and its graph. A wrong lowering raises `UnsoundModelError`; the checks do
not use `assert`, so they also run with `python -O`.
"""
