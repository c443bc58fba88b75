"""Live traffic against a vLLM server: load, measurement, scorecard. Entry point: serving-scorecard.py."""
