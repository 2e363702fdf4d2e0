"""Import of published measurements as runs into the user's MLflow store."""
