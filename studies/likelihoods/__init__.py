"""Study of estimators of the likelihood. Protocol: protocol.md; page: docs/likelihoods.md."""
