"""Parts that all commands share: overrides, help, options, tables, and errors on one line."""
