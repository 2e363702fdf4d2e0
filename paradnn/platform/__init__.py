"""Hosts, devices and software stacks: as detected and as specified, their state, installation."""
