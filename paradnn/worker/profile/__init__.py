"""Where the time of a step goes: from a profiler's trace to a table of operations (`run`)."""
