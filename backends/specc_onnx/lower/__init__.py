"""Lower IR ops to ONNX: one rule per op, and the emitter with which the rules build ONNX nodes.

Input: a node's op and the names of its operands. Output: the names of its results; `rules.lower` is
the table of rules.
"""
