"""Study of a picture beside its label as one product of processes.

Protocol: protocol.md; page: docs/studies/mixed.md.
"""
