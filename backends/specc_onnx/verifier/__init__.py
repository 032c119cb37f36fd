"""Verify a built model against the graph that it was lowered from.

In come an ONNX model and the graph, out goes nothing, or the diagnostic that a lowering
is wrong. No gate is an `assert`.
"""
