"""Pictures: grey and colour values as sequences."""
