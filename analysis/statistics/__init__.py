"""Statistics that several analyses use, each method once."""
