"""Profiles: from a trace of steps to tables of where their time goes (`run`)."""
