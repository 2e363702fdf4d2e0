"""Hosts, devices and software stacks: detection, specifications, state, installation."""
