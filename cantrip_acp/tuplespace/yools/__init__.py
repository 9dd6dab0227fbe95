"""Yools, the programs that the steps of tuples name: casts of a recipe and shell commands. `step` is what a worker and a yool
say to each other, also a yool of your own."""

__all__ = ["cast_yool", "command_yool"]
