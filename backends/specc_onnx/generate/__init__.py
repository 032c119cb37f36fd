"""A step and a decoding strategy as one ONNX model with a loop.

In come derived graphs and decoding settings, out goes a model that takes tokens and
gives texts.
"""
