"""Calibration of quantized weights: activations collected on sample inputs."""
