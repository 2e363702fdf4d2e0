"""Profiles: tables of the operations that steps spend their time on, from a trace (see `run`)."""
