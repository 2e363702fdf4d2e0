"""ParaDnn: measure parameterized deep-learning models on a platform, one MLflow run a point.

The package is the *driver* (`python -m paradnn.train`), which decides, watches and records, and, below
`paradnn.worker`, the *worker*, which measures in the interpreter under test. Nothing is imported here, so that the
worker needs neither MLflow nor Hydra.
"""

__version__ = "0.1.0"
