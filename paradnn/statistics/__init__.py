"""Statistical methods that the driver and the analyses share."""
