"""Networks, losses, metrics and the LightningModule that trains them."""
