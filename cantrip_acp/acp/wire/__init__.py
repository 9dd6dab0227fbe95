"""JSON-RPC 2.0 over newline-delimited JSON, for both sides of the protocol.

These modules import only each other and the text helpers. Start reading in `connection`.
"""

__all__ = ["connection", "jsonrpc", "send_queue"]
