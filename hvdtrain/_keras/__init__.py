"""What is behind `hvdtrain.keras`."""
