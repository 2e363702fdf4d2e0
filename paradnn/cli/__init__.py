"""What a person types and reads before anything is measured: overrides, help, errors in one line."""
