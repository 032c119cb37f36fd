"""Self-decoding models: decode step and decoding strategy in one ONNX loop.

Input: derived graphs and decoding settings. Output: a model that takes tokens and
gives texts.
"""
