"""Build standalone generators: the decode step and the decoding strategy in one ONNX `Loop`.

A generator is built from derived graphs and decoding settings, and maps prompt tokens to generated
tokens.
"""
