"""Decoding: token selection and the generation loop, over any source of next-token logits.

Takes logits and settings, returns tokens with their log-probabilities. This package is pure: it
uses no graph, runtime or file.
"""
