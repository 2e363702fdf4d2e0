"""Recording runs: in MLflow, in files where no store can be reached, and from those into MLflow."""
