"""Preprocess text, images, audio and arrays, and postprocess the outputs of models."""
