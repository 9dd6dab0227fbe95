"""What people and monitors see of a tuple-space: its state, and the metrics and the health of a worker.

It reads stores and receipts and changes nothing. Begin with `status`.
"""

__all__ = ["batch_page", "metrics", "spans", "status"]
