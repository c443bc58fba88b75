"""Datasets: made, written, read, local and S3; and the local model."""
