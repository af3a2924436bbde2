"""Repositories in the emulators of Azure and Google Cloud Storage, which `make test-clouds` installs."""
