"""Calibrate weight quantization with activations that the model computes for sample inputs."""
