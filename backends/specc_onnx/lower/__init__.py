"""Lowering: one rule per op, and the emitter that rules write through.

In come a node's op and the names of its operands, out go the names of its results;
`rules.lower` holds the rules.
"""
