"""Write models and packages to disk.

Input: built models and weight values. Output: files, the `.onnx` or the package index last.
"""
