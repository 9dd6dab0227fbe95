"""Crystals: the models. One contract, one file a provider; a provider's SDK is imported when it is first queried.

Only a provider's own file may import its SDK; everything else sees `crystals.contract` alone.
"""
