"""The file format of recordings, without files and clocks."""
