"""A developer's chores as gates: reading the web, reading and writing a repository's history, running tests.

What they reach lies outside the files that other gates stay in: the network, git's programs, the sandbox. The registry of
gates imports from here by name; nobody else needs to.
"""
