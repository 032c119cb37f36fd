"""Standalone generators: decode step and decoding strategy in one ONNX loop.

Input: derived graphs and decoding settings. Output: a model from prompt tokens to
generated tokens.
"""
