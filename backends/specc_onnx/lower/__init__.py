"""Lowering: one rule per op, and the emitter with which the rules build ONNX nodes.

Input: a node's op and the names of its operands. Output: the names of its results;
`rules.lower` holds the rules.
"""
