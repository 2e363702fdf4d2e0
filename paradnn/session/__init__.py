"""One session: find the missing points of a plan, claim, measure and record them."""
