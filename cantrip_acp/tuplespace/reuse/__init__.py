"""Reuse of earlier results: of whole steps (`step_results`) and of gates that declare their inputs (`gate_results`).
`workspace_inputs` finds the files on which a cast depends."""

__all__ = ["gate_results", "step_results", "workspace_inputs"]
