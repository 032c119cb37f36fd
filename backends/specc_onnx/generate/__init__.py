"""Build standalone generators: decode step and decoding strategy in one ONNX loop.

Input: derived graphs and decoding settings. Output: a model that maps prompt tokens to generated
tokens.
"""
