"""Text and data that cross a boundary: secrets are hidden, control characters removed, JSON decoded strictly."""
