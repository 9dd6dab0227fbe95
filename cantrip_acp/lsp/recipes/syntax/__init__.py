"""Where everything stands in a recipe's text, also while it is being typed."""
