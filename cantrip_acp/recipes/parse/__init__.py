"""From a recipe's text to checked plain data, or to every problem with its place."""
