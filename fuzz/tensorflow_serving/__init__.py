"""The targets of TensorFlow Serving's protocol."""
