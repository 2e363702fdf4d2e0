"""MLflow stores: claims and resume, journal, readers, bundles, Parquet files, metrics."""
