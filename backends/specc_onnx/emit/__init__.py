"""Build ONNX models without weights from lowered graphs.

Input: a graph and a target. Output: a `BuiltModel`.
"""
