"""Decoding: token selection and the generation loop, independent of the runtime that computes the
logits.

Decoding functions take logits and generation settings, and return tokens and log-probabilities. The
package `specc.decode` imports no graph or runtime code, and reads no files.
"""
