"""From a worker's answer to what is stored; pure functions."""
