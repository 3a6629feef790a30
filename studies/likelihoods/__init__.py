"""Study of estimators of the likelihood.

Protocol: protocol.md; page: docs/studies/likelihoods.md.
"""
