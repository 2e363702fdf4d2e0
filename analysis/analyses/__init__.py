"""The analyses, one module each: its options, numbers, sentences, table, figure and report section."""
