"""Self-decoding models: decode step and decoding strategy in one ONNX loop.

In come derived graphs and decoding settings, out goes a model that takes tokens and
gives texts.
"""
