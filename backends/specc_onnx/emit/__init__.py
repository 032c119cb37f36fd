"""Build ONNX models without weights from lowered graphs.

Input: a graph and a target. Output: a verified `BuiltModel`. The directory is
not called `build`, because tools leave out folders of that name.
"""
