"""What a host and its devices are: as specified, and as found."""
