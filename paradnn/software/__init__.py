"""Software stacks: interpreters with given versions, made on first use."""
