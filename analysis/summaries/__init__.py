"""What each analysis found, in words and tables."""
