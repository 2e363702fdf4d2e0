"""The analyses as a user calls them: a function from a frame and options to a typed result, each in its module."""
