"""The instances of a loaded version: started, watched, replaced."""
