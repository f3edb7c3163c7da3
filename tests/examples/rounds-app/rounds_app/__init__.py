"""Rounds of secure aggregation without models, which tests of deployments ask."""
