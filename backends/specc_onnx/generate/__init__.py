"""Build standalone generators: the decode step and the decoding strategy in one ONNX `Loop`.

Input: derived graphs and decoding settings. Output: a model that maps prompt tokens to generated
tokens.
"""
