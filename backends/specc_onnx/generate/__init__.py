"""Build standalone generators: models that run the decode step and the decoding strategy in an ONNX
`Loop`.

A generator is built from derived graphs and decoding settings. It maps prompt tokens to generated
tokens.
"""
