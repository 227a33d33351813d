"""The train command: how one model is trained (Section 5), evaluated and logged."""
