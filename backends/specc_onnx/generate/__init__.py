"""Build standalone generators, which run decode step and decoding strategy in an ONNX `Loop`.

A generator is built from derived graphs and decoding settings, and maps prompt tokens to generated
tokens.
"""
