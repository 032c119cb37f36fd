"""Calibrate weight quantization with the activations that the model computes for sample inputs."""
