"""Build ONNX models without weights from lowered graphs.

In come a graph and a target, out goes a `Built` that passed the gates. The folder is
not called `build`, because tools leave out folders of that name.
"""
