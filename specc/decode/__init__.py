"""How a next token is chosen and a text is written, over anything that gives the logits
of its next token.

In come logits and settings, out go tokens with their log-probabilities. Pure: no graph,
no runtime, no file.
"""
