"""One session: what is missing of a plan, measured and recorded point after point."""
