"""Which of two is faster: settings, stacks or frameworks of this machine by turns, until the interval is enough."""
