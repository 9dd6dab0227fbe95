"""JSON-RPC 2.0 over newline-delimited JSON, for both sides of the protocol.

These modules import only the text helpers and the core. Start reading in `connection`.
"""
