"""Build standalone generators: the decode step and the decoding strategy in one ONNX `Loop`.

The input is a set of derived graphs with decoding settings. The output is a model that maps prompt
tokens to generated tokens.
"""
