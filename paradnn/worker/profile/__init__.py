"""Profiles: tables of the operations in a step, with their times, from a profiler's trace."""
