"""Delegation: entities that summon entities (chapter 5, COMP-1..9).

What a child may be is judged here, once for every medium and every way to ask for one; it lives in its parent's scope.
Part of the core: no sandbox, no protocol, no recipe.
"""
