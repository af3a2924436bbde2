"""Hugging Face models by the library transformers itself, and as tpy import serves them."""
