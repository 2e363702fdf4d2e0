"""Published measurements of others, which become runs in the user's store."""
