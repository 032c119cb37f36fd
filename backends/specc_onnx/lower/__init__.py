"""Lower IR ops to ONNX. Each op has a lowering rule, and the rules build ONNX nodes with the
emitter. A rule maps the op of a node and the ONNX values of the operands to the values of the
results. `registry.lower` is the table of all rules.
"""
