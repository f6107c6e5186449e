"""What is behind `hvdtrain.torch`."""
