"""Write models and packages to disk.

Input: built models and weight values. Output: files, of which the `.onnx` file or the package index
is written last.
"""
