"""Pictures of what `analysis.methods` found: a function for each, from a method's result to a Matplotlib figure."""
