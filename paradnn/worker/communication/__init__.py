"""Communication between processes, measured alone: docs/communication.md says what a step of each pattern is."""
