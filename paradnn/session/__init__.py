"""One session: measure and record the missing points of a plan, one after another."""
