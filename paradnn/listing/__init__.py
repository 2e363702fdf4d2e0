"""What there is to choose from: printed for a person, and proposed to a shell that completes words."""
