"""One question: two settings, stacks or frameworks of this machine by turns, until the interval says enough."""
