"""What is known of models: windows, limits, prices, abilities, and parameters that they reject."""
