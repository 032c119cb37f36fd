"""Decoding: token selection and the generation loop, over any source of next-token logits.

Takes logits and settings, returns tokens with their log-probabilities. Pure: no graph, no runtime,
no file.
"""
