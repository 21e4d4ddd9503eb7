"""CoDID and its baselines: disentangled representations under hidden correlations."""

__version__ = "0.1.0"
