"""What `cantrip demo` plays: a small sample project with a real bug, a recipe and a script for the scripted crystal.

Everything here is data (copied to a temporary folder before use) and ships inside the wheel. Only `cli/commands/demo.py` reads it.
"""
