"""Models on disk: where each tensor goes, streamed, hashed and renamed into place.

In come built models and weight values, out go files, the `.onnx` or the index last.
"""
