"""The command line: overrides, help, options, tables, and errors on one line."""
