"""From a tracking store to a checked frame: the only readers."""
