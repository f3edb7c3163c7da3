"""Training on the device: DP-FedAvg (McMahan et al. 2018) and DP-FTRL (Kairouz et al. 2021)."""
