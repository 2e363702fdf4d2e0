"""Hosts, devices and software stacks: detection, specifications, load and installation."""
