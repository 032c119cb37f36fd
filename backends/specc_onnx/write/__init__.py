"""Write models and packages to disk.

In come built models and weight values, out go files, the `.onnx` or the index last.
"""
