"""A language model as it is used: a prompt is read at once, then one token follows the other from a cache."""
