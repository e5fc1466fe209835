"""The cheapest estimator whose error is below a target with a stated probability, certified."""
